#include "http/message.h"
#include "http/address.h"
#include "http/client.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(HttpMessage, ReadsTargets) {
    std::string path;
    std::vector<std::pair<std::string, std::string>> query;
    ASSERT_TRUE(read_target("/a%20b/%C3%A9?x=1+2&y&z=%26", path, query));
    EXPECT_EQ(path, "/a b/é");
    const std::vector<std::pair<std::string, std::string>> want{{"x", "1 2"}, {"y", ""}, {"z", "&"}};
    EXPECT_EQ(query, want);
    for (const char* wrong : {"", "a", "http://x/", "/%", "/%4", "/%zz", "/?%g1", "*"})
        EXPECT_FALSE(read_target(wrong, path, query)) << wrong;
}

TEST(HttpAddressText, ReadsUrls) {
    const auto check = [](const char* url, const char* address, const char* base) {
        const auto parsed = parse_url(url);
        ASSERT_TRUE(parsed.ok()) << parsed.error().message();
        EXPECT_EQ(to_text(parsed->address), address);
        EXPECT_EQ(parsed->base, base);
    };
    check("http://127.0.0.1:8000", "127.0.0.1:8000", "");
    check("http://host/v1/", "host:80", "/v1");
    check("localhost:1", "localhost:1", "");
    check("http://[::1]:90/x", "[::1]:90", "/x");
    check("unix:/tmp/a b", "unix:/tmp/a b", "");
    for (const char* wrong : {"", "http://", "https://x", "x:", "x:70000", "x:1y", "[::1", "unix:", "[::1]9"})
        EXPECT_FALSE(parse_url(wrong).ok()) << wrong;
}

TEST(SseReader, ReadsEventsHoweverTheyAreCut) {
    const std::string text = "data: a\n\n: ping\n\nevent: x\ndata: b\r\ndata:c\r\n\r\ndata\n\nid: 4\n\n";
    const auto read = [&](size_t cut) {
        std::string all;
        SseReader reader;
        const auto note = [&](const SseEvent& e) { all += e.name + "(" + e.data + ")"; };
        reader.push(std::string_view(text).substr(0, cut), note);
        reader.push(std::string_view(text).substr(cut), note);
        EXPECT_EQ(reader.comments(), 1);
        return all;
    };
    for (size_t cut = 0; cut <= text.size(); ++cut) EXPECT_EQ(read(cut), "(a)x(b\nc)()") << cut;
}

}  // namespace
}  // namespace nibble
