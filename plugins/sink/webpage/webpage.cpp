// The run as a live page at http://127.0.0.1:PORT/TOKEN/, read-only: the page of `chassis report`, and server-sent
// events (HTML standard, §9.2) that tell it when there is something new. Other users of the machine do not
// know the token.
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "chassis/http.hpp"
#include "chassis/listener.hpp"
#include "chassis/plugin.hpp"
#include "chassis/sink.hpp"

namespace {

using namespace chassis;

class Webpage final : public Sink {
 public:
  static constexpr std::string_view kDoc = "the run as a live page at http://127.0.0.1:PORT/TOKEN/";

  static const Options& options() {
    static const Options schema = {
        option("port", 8642).range(0, 65535).doc("TCP port on the loopback interface; 0: any free one, see the log"),
    };
    return schema;
  }

  explicit Webpage(const Host& host) : Sink(host), port_(static_cast<uint16_t>(option_value<int64_t>(host, "port"))) {}

  void start(const chassis_sink_start_t& start) override {
    if (start.page == nullptr) throw Failure(CHASSIS_UNAVAILABLE, "the host gives no page");
    page_.emplace(host(), *start.page);
    try {
      // Sends an event-stream comment as heartbeat, to detect readers that are gone.
      listener_.emplace(port_, http_protocol([this](const auto&... asked) { return answer(asked...); }, ": \n\n"));
    } catch (const std::system_error& error) {
      throw Failure(CHASSIS_UNAVAILABLE, error.what(), "; choose another port in [log.webpage]");
    }
    host().log(CHASSIS_LOG_INFO,
               "the run as a page: http://127.0.0.1:" + std::to_string(listener_->port()) + "/" + token_ + "/");
  }
  void scalars(int64_t, double, std::span<const chassis_scalar_t>) override { publish(); }
  void text(const chassis_sink_text_t&) override { publish(); }
  void finish(const chassis_sink_finish_t&) override { listener_.reset(); }

 private:
  void publish() {
    if (listener_) listener_->publish("data: " + std::to_string(++num_changes_) + "\n\n");
  }

  HttpAnswer answer(const HttpRequest& request, bool may_follow) const {
    std::string_view path = request.path.substr(1);
    const std::string_view token = path.substr(0, path.find('/'));
    path.remove_prefix(token.size());
    if (!is_same_secret(token, token_))
      return {.status = 403, .body = "the address of this page is in the log of the run: it has a token\n"};
    if (path == "/") return {.type = "text/html; charset=utf-8", .body = page_->html(/*is_live=*/true)};
    if (path == "/data") return data(request.query);
    if (path == "/events") {
      if (!may_follow) return {.status = 503, .body = "too many pages follow this run\n"};
      return {.type = "text/event-stream", .follows = true};
    }
    return {.status = 404, .body = "there is no such page\n"};
  }

  HttpAnswer data(std::string_view query) const {
    const std::string_view text = query_value(query, "since").value_or("");
    int64_t since = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), since);
    if (!text.empty() && (error != std::errc() || end != text.data() + text.size() || since < 0))
      return {.status = 400, .body = "since is not a step\n"};
    return {.type = "application/json", .body = page_->data(since)};
  }

  const uint16_t port_;
  const std::string token_ = new_secret();
  uint64_t num_changes_ = 0;
  std::optional<RunPage> page_;
  std::optional<Listener> listener_;  // uses the members above
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.options/1\n"
    "requires=chassis.log/1\n"
    "license=Apache-2.0\n",
    Webpage)
