#include "elsewhere/file.h"
