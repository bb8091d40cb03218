// The public name of base/error.h: Result, Status, Error and ErrorKind.
#pragma once

#include "base/error.h"
