#include <base/error.h>
#include <serve/sampler.h>
#include <vector>
