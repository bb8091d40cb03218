#include "http/message.h"
#include "http/address.h"
#include "http/client.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(HttpMessage, ReadsTargets) {
    HttpRequest r;
    ASSERT_TRUE(read_target("/a%20b/%C3%A9?x=1+2&y&z=%26", r));
    EXPECT_EQ(r.path, "/a b/é");
    const std::vector<std::pair<std::string, std::string>> want{{"x", "1 2"}, {"y", ""}, {"z", "&"}};
    EXPECT_EQ(r.query, want);
    for (const char* wrong : {"", "a", "http://", "http:///a", "http://u@x/", "ftp://x/", "http://x/#a", "/#a", "/%",
                              "/%4", "/%zz", "/?%g1", "*", "x:80"})
        EXPECT_FALSE(read_target(wrong, r)) << wrong;
    const struct {
        const char *target, *host, *path;
        size_t query;
    } absolute[]{{"http://x/a", "x", "/a", 0},
                 {"HTTP://x:80", "x:80", "/", 0},
                 {"https://[::1]:9?q=1", "[::1]:9", "/", 1},
                 {"http://127.0.0.1:8000/v1/models?a&b", "127.0.0.1:8000", "/v1/models", 2}};
    for (const auto& [target, host, path, query] : absolute) {
        HttpRequest one;
        ASSERT_TRUE(read_target(target, one)) << target;
        EXPECT_EQ(one.host, host);
        EXPECT_EQ(one.path, path);
        EXPECT_EQ(one.query.size(), query);
    }
}

TEST(HttpMessage, KnowsHosts) {
    for (const char* good : {"", "x", "x:80", "a-b.c_d:65535", "127.0.0.1", "[::1]", "[::ffff:1.2.3.4]:8", "x:", "x."})
        EXPECT_TRUE(is_host(good)) << good;
    for (const char* wrong : {"a b", "a/b", "u@x", "x:y", "x:1234567", "[::1", "[]", "[x]", "[::1]9", ":80", "a,b",
                              "x?", "x#", "x\\", "\xc3\xa9"})
        EXPECT_FALSE(is_host(wrong)) << wrong;
    EXPECT_EQ(host_name("LocalHost:80"), "localhost");
    EXPECT_EQ(host_name("[::1]:80"), "::1");
    EXPECT_EQ(host_name("x.example."), "x.example");
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
