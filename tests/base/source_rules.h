// Rules over the text of a source tree that a compiler does not check: who may include whom, and which names may not
// meet when six files of a folder are compiled together (NIBBLE_UNITY). Each rule returns its violations, sorted, as
// lines "FILE:LINE: what is wrong" (FILE relative to the root), so that a test can run a rule over nibble/ and over a
// small tree in which every violation is planted.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::test {

struct RuleReport {
    std::vector<std::string> violations;
    int files = 0;  // number of files that were read
    int seen = 0;   // includes, or names, that were compared
};

// The levels and folders of docs/architecture.md, section 2, over *.h, *.cpp, *.cu, *.cuh and *.inc:
//  - a folder includes itself and folders of lower levels, in quotes; project headers in angle brackets are violations;
//  - kernels/ref, kernels/cpu and kernels/cuda do not include each other, but cpu/ may include ref/, whose functions
//  are
//    the definitions;
//  - a folder of kernels/cuda/ includes itself, common/, and of the other folders the interfaces *_launch.h;
//  - folders other than kernels/ include only the headers that lie in kernels/ itself;
//  - headers of GPU code (folders device/ and kernels/*_cuda.h) are included only from GPU code (folders device/ and
//    cuda/, and gpu_bench/), which a build without CUDA does not compile;
//  - CUDA's own headers, and headers of a cuda/ folder, are included only from a cuda/ folder.
RuleReport check_includes(const std::filesystem::path& root);

// Names that two files of a library declare in anonymous namespaces or as static functions, although the files may be
// compiled as one: variables, types, functions with equal parameter types. Overloads, equal aliases and declarations
// that are repeated in one file are allowed. formats/, tensor/ and kernels/ are compiled file by file.
RuleReport check_anonymous_names(const std::filesystem::path& root);

// Types (classes, enumerations, class templates) that two files define under the same qualified name, headers and
// sources alike: one program must not contain two (the one-definition rule), and readers would mix them up. Types in
// anonymous namespaces are left out, and so are types inside classes.
RuleReport check_type_names(const std::filesystem::path& root);

// Kernels (__global__ functions) that two files define under the same name: a profile would show them as one.
RuleReport check_kernel_names(const std::filesystem::path& root);

// C++ text without comments, preprocessor lines and the contents of literals; lines stay lines.
std::string bare_code(std::string_view text);

}  // namespace nibble::test
