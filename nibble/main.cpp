#include "cli/cli.h"

int main(int argc, char** argv) { return nibble::cli_main(argc, argv); }
