// Every BF16 pattern and every code against ml_dtypes (golden/codecs.safetensors).
#include "base/json.h"
#include "base/mapped_file.h"
#include "formats/minifloat.h"
#include "support/files.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

using namespace nibble;

namespace {

// io/ is a sibling of formats/, so this test reads the container by hand: u64 header length, JSON, data.
class Tensors {
public:
    explicit Tensors(const std::filesystem::path& path) : file_(*MappedFile::open(path)) {
        uint64_t length;
        std::memcpy(&length, file_.bytes().data(), 8);
        header_ = *parse_json({reinterpret_cast<const char*>(file_.bytes().data()) + 8, length});
        data_ = file_.bytes().subspan(8 + length);
    }
    Bytes operator[](const std::string& name) const {
        const size_t begin = header_.at(name)["data_offsets"][0], end = header_.at(name)["data_offsets"][1];
        return data_.subspan(begin, end - begin);
    }

private:
    MappedFile file_;
    Json header_;
    Bytes data_;
};

struct Codec {
    std::string name;
    int codes;
    std::function<uint8_t(float)> encode;
    std::function<float(uint8_t)> decode;
};

}  // namespace

TEST(GoldenCodecs, AllInputsAndAllCodesEqualMlDtypes) {
    const std::filesystem::path golden = test::test_data("golden/codecs.safetensors");
    const Tensors tensors(golden);
    const Codec codecs[] = {
        {"float8_e4m3fn", 256, e4m3_from_float, e4m3_to_float},
        {"float8_e5m2", 256, e5m2_from_float, e5m2_to_float},
        {"float8_e8m0fnu", 256, e8m0_from_float, e8m0_to_float},
        // ml_dtypes keeps the sign of every zero and turns NaN into the zero of the other sign.
        {"float4_e2m1fn", 16,
         [](float x) {
             return std::isnan(x) ? uint8_t(std::signbit(x) ? 0 : 8)
                                  : uint8_t(e2m1_magnitude(x) | (std::signbit(x) ? 8 : 0));
         },
         e2m1_to_float},
    };
    for (const Codec& codec : codecs) {
        const Bytes expected = tensors["bf16_to_" + codec.name];
        ASSERT_EQ(expected.size(), 65536u);
        for (uint32_t i = 0; i < 65536; ++i) {
            const float x = bf16_to_float(uint16_t(i));
            const int want = int(expected[i]), have = codec.encode(x);
            const bool both_nan =
                std::isnan(x) && std::isnan(codec.decode(uint8_t(want))) && std::isnan(codec.decode(uint8_t(have)));
            ASSERT_TRUE(want == have || both_nan) << codec.name << " " << x << " want " << want << " have " << have;
        }
        const Bytes values = tensors[codec.name + "_value"];
        ASSERT_EQ(values.size(), size_t(codec.codes) * 4);
        for (int c = 0; c < codec.codes; ++c) {
            float want;
            std::memcpy(&want, values.data() + 4 * c, 4);
            const float have = codec.decode(uint8_t(c));
            ASSERT_TRUE(std::isnan(want) ? std::isnan(have) : float_bits(want) == float_bits(have))
                << codec.name << " code " << c;
        }
    }
}
