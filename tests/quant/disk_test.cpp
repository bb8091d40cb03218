// The job with real files: memory use, and a full disk.
#include "quant/meter.h"

#include "io/journal.h"
#include "quant/job.h"
#include "quant/resolve.h"
#include "support/files.h"

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;

// Writes a model folder whose weights are holes in a file: zeros that occupy no space.
void write_sparse_model(const fs::path& folder, const std::vector<std::pair<std::string, DType>>& tensors, int64_t rows,
                        int64_t cols) {
    fs::create_directories(folder);
    write_file(folder / "config.json",
               R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16"})");
    Json header = Json::object();
    int64_t at = 0;
    for (const auto& [name, dtype] : tensors) {
        const int64_t bytes = rows * cols * dtype_bytes(dtype);
        header[name] = Json{{"dtype", dtype_name(dtype)}, {"shape", {rows, cols}}, {"data_offsets", {at, at + bytes}}};
        at += bytes;
    }
    std::string text = header.dump();
    text.resize(round_up<size_t>(text.size(), 8), ' ');
    const uint64_t size = text.size();
    write_file(folder / "model.safetensors", std::string(reinterpret_cast<const char*>(&size), 8) + text);
    fs::resize_file(folder / "model.safetensors", 8 + size + static_cast<uint64_t>(at));
}

struct Job {
    std::unique_ptr<Checkpoint> source;
    Plan plan;
    JobOptions options;

    explicit Job(const fs::path& model) {
        source = *Checkpoint::open(model);
        plan = *resolve(*load_recipe("w4a16_nvfp4"), source->tensors(), source->config());
        options.scales = *resolve_activation_scales(plan, nullptr);
    }
    Result<std::unique_ptr<Export>> open(const fs::path& out, ExportMode mode) const {
        return open_export(
            {.out = out, .tensors = export_tensors(*source, plan, options.scales), .config = source->config()}, mode);
    }
};

TEST(JobOnDisk, MemoryStaysFarBelowTheLargestTensor) {
    TempDir dir;
    // 512 MiB each. F16 is widened; BF16 is used in place.
    write_sparse_model(
        dir / "model",
        {{"model.layers.0.mlp.up_proj.weight", DType::f16}, {"model.layers.0.mlp.gate_proj.weight", DType::bf16}},
        32768, 8192);
    const Job job(dir / "model");
    auto out = job.open(dir / "out", ExportMode::create);
    ASSERT_TRUE(out.ok()) << out.error().message();
    ThreadPool pool(3);
    const int64_t before = memory_use().anonymous;
    const auto report = run_quantize(*job.source, job.plan, job.options, **out, pool, {});
    ASSERT_TRUE(report.ok()) << report.error().message();
    EXPECT_GT(report->timing.peak_anonymous_bytes, 0);
    EXPECT_LT(report->timing.peak_anonymous_bytes - before, int64_t{64} << 20);
    EXPECT_EQ(report->timing.bytes_read, int64_t{1} << 30);
    EXPECT_EQ(report->tensors[0].zeros, 0);
    ASSERT_TRUE((*out)->finish().ok());
}

// A small file system for one test.
class TinyDisk {
public:
    explicit TinyDisk(const fs::path& at, const char* size) : at_(at) {
        fs::create_directories(at);
        const std::string options = std::string("size=") + size;
        mounted_ = ::mount("tmpfs", at.c_str(), "tmpfs", 0, options.c_str()) == 0;
        why_ = std::strerror(errno);
    }
    ~TinyDisk() {
        if (mounted_) ::umount2(at_.c_str(), MNT_DETACH);
    }
    bool mounted() const { return mounted_; }
    const std::string& why() const { return why_; }

    // Leaves no byte free.
    void fill(const fs::path& ballast) const {
        std::ofstream file(ballast, std::ios::binary);
        const std::string page(4096, 'x');
        while (file.write(page.data(), 4096).flush()) {
        }
    }

private:
    fs::path at_;
    bool mounted_ = false;
    std::string why_;
};

TEST(JobOnDisk, AFullDiskStopsTheJobAndResumeFinishesIt) {
    TempDir dir;
    const TinyDisk disk(dir / "disk", "16m");
    if (!disk.mounted()) GTEST_SKIP() << "cannot mount a small file system: " << disk.why();
    std::vector<std::pair<std::string, DType>> tensors;
    for (int layer = 0; layer < 20; ++layer)
        tensors.emplace_back("model.layers." + std::to_string(layer) + ".mlp.down_proj.weight", DType::bf16);
    write_sparse_model(dir / "model", tensors, 512, 512);
    const Job job(dir / "model");
    ThreadPool pool(2);

    auto whole = job.open(dir / "whole", ExportMode::create);
    ASSERT_TRUE(whole.ok());
    ASSERT_TRUE(run_quantize(*job.source, job.plan, job.options, **whole, pool, {}).ok());
    ASSERT_TRUE((*whole)->finish().ok());

    const fs::path on_disk = dir / "disk" / "out", ballast = dir / "disk" / "ballast";
    {
        auto out = job.open(on_disk, ExportMode::create);
        ASSERT_TRUE(out.ok()) << out.error().message();
        // The space of the weights is allocated; the journal needs five pages and gets three.
        disk.fill(ballast);
        fs::resize_file(ballast, fs::file_size(ballast) / 4096 * 4096 - 3 * 4096);
        const auto report = run_quantize(*job.source, job.plan, job.options, **out, pool, {});
        ASSERT_FALSE(report.ok());
        EXPECT_NE(report.error().message().find("No space left on device"), std::string::npos)
            << report.error().message();
        EXPECT_NE(report.error().message().find("--resume"), std::string::npos) << report.error().message();
    }
    EXPECT_FALSE(fs::exists(on_disk));
    EXPECT_GT(read_file(fs::path(on_disk.string() + ".partial") / Journal::file_name).size(), 4096u);
    fs::remove(ballast);
    auto out = job.open(on_disk, ExportMode::resume);
    ASSERT_TRUE(out.ok()) << out.error().message();
    const auto report = run_quantize(*job.source, job.plan, job.options, **out, pool, {});
    ASSERT_TRUE(report.ok()) << report.error().message();
    EXPECT_GT(report->timing.resumed_tensors, 0);
    ASSERT_TRUE((*out)->finish().ok());
    EXPECT_EQ(sha256(read_file(on_disk / "model.safetensors")), sha256(read_file(dir / "whole" / "model.safetensors")));
}

}  // namespace
}  // namespace nibble::test
