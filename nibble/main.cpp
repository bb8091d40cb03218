#include "cli/guard.h"

int main(int argc, char** argv) { return nibble::guarded_main(argc, argv); }
