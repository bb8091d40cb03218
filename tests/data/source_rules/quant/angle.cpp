#include <vector>
#include <base/error.h>
#include <engine/sampler.h>
