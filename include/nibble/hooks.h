// The public name of base/progress.h, which is installed under this name.
#pragma once

#include "base/progress.h"
