#include "base/model_place.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace nibble {
namespace {

namespace fs = std::filesystem;

// Returns true if the path is "OWNER/NAME" in the Hub's characters and no folder OWNER exists.
bool is_hub_name(const fs::path& path) {
    const std::string text = path.string();
    const size_t slash = text.find('/');
    if (slash == 0 || slash == text.npos || text.find('/', slash + 1) != text.npos || slash + 1 == text.size())
        return false;
    const auto allowed = [](unsigned char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' ||
               c == '.' || c == '/';
    };
    constexpr std::array<std::string_view, 5> files{".gguf", ".safetensors", ".json", ".bin", ".yaml"};
    const bool file = std::ranges::any_of(files, [&](std::string_view ending) { return text.ends_with(ending); });
    std::error_code ignored;
    return !file && text.front() != '.' && std::ranges::all_of(text, allowed) &&
           !fs::exists(text.substr(0, slash), ignored);
}

struct OtherFormat {
    std::string_view ending, name;
};
constexpr OtherFormat other_weights[] = {{".bin", "PyTorch's pickles"},
                                         {".pt", "PyTorch's pickles"},
                                         {".pth", "PyTorch's pickles"},
                                         {".ckpt", "PyTorch's pickles"},
                                         {".h5", "TensorFlow"},
                                         {".msgpack", "Flax"},
                                         {".onnx", "ONNX"}};

}  // namespace

Error no_such_model(const fs::path& path) {
    const std::string name = path.string();
    if (!is_hub_name(path)) return fail(ErrorKind::file, "{}: no such file or folder", name);
    const std::string folder = path.filename().string();
    return fail(
        ErrorKind::file,
        "{}: no such file or folder; if it is a model of the Hugging Face Hub, fetch it and give its folder: hf "
        "download "
        "{} --local-dir {}",
        name, name, folder);
}

Status check_no_adapter(const fs::path& folder) {
    std::error_code ignored;
    if (!fs::exists(folder / "adapter_config.json", ignored) || fs::exists(folder / "config.json", ignored))
        return Ok{};
    const std::string where = folder.string();
    return fail(
        ErrorKind::checkpoint,
        "{}: is a LoRA adapter of PEFT, not a model; merge it into its base model first: python3 -c \"from peft import "
        "AutoPeftModelForCausalLM as A; A.from_pretrained('{}', dtype='auto').merge_and_unload().save_pretrained("
        "'{}-merged')\", and copy the tokenizer's files there",
        where, where, where);
}

Error no_safetensors(const fs::path& folder) {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
        names.push_back(it->path().filename().string());
    std::ranges::sort(names);
    const std::string where = folder.string();
    for (const std::string& name : names)
        if (name.ends_with(".gguf"))
            return fail(ErrorKind::checkpoint, "{}: has no *.safetensors; give its file {}", where, name);
    if (const Status model = check_no_adapter(folder); !model.ok()) return model.error();
    for (const OtherFormat& format : other_weights)
        for (const std::string& name : names)
            if (name.ends_with(format.ending))
                return fail(
                    ErrorKind::checkpoint,
                    "{}: its weights are in {} ({}), which is not read; write them as safetensors: python3 -c \"from "
                    "transformers import AutoModelForCausalLM as A, AutoTokenizer as T; A.from_pretrained('{}', "
                    "dtype='auto').save_pretrained('{}-safetensors'); "
                    "T.from_pretrained('{}').save_pretrained('{}-safetensors')\"",
                    where, name, format.name, where, where, where, where);
    return fail(ErrorKind::checkpoint, "{}: no weights: neither *.safetensors nor an index", where);
}

}  // namespace nibble
