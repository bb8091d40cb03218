// The public name of base/progress.h: JobHooks with callbacks for progress, warnings and notes, and the request to
// stop.
#pragma once

#include "base/progress.h"
