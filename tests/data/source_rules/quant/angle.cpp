#include <vector>
#include <base/error.h>
#include <serve/sampler.h>
