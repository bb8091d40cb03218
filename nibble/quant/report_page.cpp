#include "quant/report_page.h"

namespace nibble {

std::string_view format_style(Format format) {
    switch (format) {
        case Format::none:
            return "plain";
        case Format::nvfp4:
            return "s0";
        case Format::fp8:
            return "s1";
        case Format::mxfp4:
            return "s2";
        case Format::mxfp8:
            return "s3";
        case Format::nvfp4_bs32:
            return "s4";
        case Format::fp8_row:
            return "s5";
        case Format::fp8_block128:
            return "s6";
    }
    __builtin_unreachable();
}

}  // namespace nibble
