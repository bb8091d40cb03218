// Uses only the installed headers and library, like a separate program: quantizes a model, trains two steps, evaluates
// the result, and serves one request.
//   uses_nibble MODEL FOLDER
#include <arpa/inet.h>
#include <nibble/evaluate.h>
#include <nibble/quantize.h>
#include <nibble/serve.h>
#include <nibble/train.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

template <class T>
T must(nibble::Result<T> result) {
    if (result.ok()) return *std::move(result);
    const auto kind = nibble::error_kind_name(result.error().kind());
    std::fprintf(stderr, "%.*s: %s\n", int(kind.size()), kind.data(), result.error().message().c_str());
    std::exit(1);
}

// Returns the status line of the answer to one request.
std::string status_of(uint16_t port, const std::string& path, const std::string& body) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    if (::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) return "no connection";
    const std::string request = "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
                                "Connection: close\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
                                body;
    if (::write(fd, request.data(), request.size()) < 0) return "no request";
    std::string answer;
    char buffer[4096];
    for (ssize_t n; (n = ::read(fd, buffer, sizeof buffer)) > 0;) answer.append(buffer, size_t(n));
    ::close(fd);
    return answer.substr(0, answer.find("\r\n"));
}

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    const std::string model = argv[1], folder = argv[2], text = folder + "/text.txt", small = folder + "/small";
    std::ofstream lines(text);
    for (int i = 0; i < 60; ++i) lines << "Line " << i << " says hello to the world, and the world says hello to it.\n";
    lines.close();

    const std::string config = "model: " + model + "\noutput: " + folder + "/run\nsteps: 2\nbatch: 1\nsequence: 16\n";
    const auto trained = must(nibble::train({.text = config + "data: {text: " + text + "}\n"}, {}));

    const auto quantized = must(nibble::quantize({.source = model, .out = small, .recipe = "w4a16_nvfp4"}, {}));
    const auto measured =
        must(nibble::evaluate({.models = {small}, .against = model, .text = text, .context = 64, .chunks = 4}, {}));

    nibble::ServeOptions options;
    options.model = small;
    options.port = 0;
    options.cache.kv_memory = "64MB";
    const auto server = must(nibble::serve(options, {}));
    const std::string answer =
        status_of(server->port(), "/v1/completions", R"({"model": "small", "prompt": "hello", "max_tokens": 4})");
    server->stop(std::chrono::seconds(10));

    std::printf("%d of %d tensors, %d steps, %zu numbers, %s\n", int(quantized.quantized_tensors),
                int(quantized.tensors), int(trained.steps), measured.measured.size(), answer.c_str());
}
