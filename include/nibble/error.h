// The public name of base/error.h, which is installed under this name.
#pragma once

#include "base/error.h"
