#include "text/bpe.h"
