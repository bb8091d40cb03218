#pragma once
#include "formats/nvfp4.h"
