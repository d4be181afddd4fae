// The run as a live page at http://127.0.0.1:PORT/, read-only: the page of `chassis report`, and server-sent events
// (HTML standard, §9.2) that tell it when there is something new.
#include <httplib.h>
#include <strings.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "chassis/plugin.hpp"
#include "chassis/sink.hpp"

namespace {

using namespace chassis;

constexpr int kNumThreads = 8, kMaxReaders = 6;  // each reader of events occupies a thread of the server

// Counts changes, and lets others wait for the next one.
class Changes {
 public:
  void add() {
    {
      const std::lock_guard lock(mutex_);
      ++count_;
    }
    changed_.notify_all();
  }
  void end() {
    {
      const std::lock_guard lock(mutex_);
      has_ended_ = true;
    }
    changed_.notify_all();
  }
  // The count when it differs from `seen`, or after `limit`; nothing after end().
  std::optional<uint64_t> wait(uint64_t seen, std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, limit, [&] { return has_ended_ || count_ != seen; });
    if (has_ended_) return std::nullopt;
    return count_;
  }
  bool has_ended() {
    const std::lock_guard lock(mutex_);
    return has_ended_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t count_ = 0;
  bool has_ended_ = false;
};

class Webpage final : public Sink {
 public:
  static constexpr std::string_view kDoc = "the run as a live page at http://127.0.0.1:PORT/";

  static const Options& options() {
    static const Options schema = {
        option("port", 8642).range(0, 65535).doc("TCP port on the loopback interface; 0: any free one, see the log"),
    };
    return schema;
  }

  explicit Webpage(const Host& host) : Sink(host), port_(static_cast<int>(option_value<int64_t>(host, "port"))) {}
  ~Webpage() override { stop(); }

  void start(const chassis_sink_start_t& start) override {
    if (start.page == nullptr) throw Failure(CHASSIS_UNAVAILABLE, "the host gives no page");
    page_.emplace(host(), *start.page);
    serve();
    errno = 0;
    const int bound = port_ == 0                                 ? server_.bind_to_any_port("127.0.0.1")
                      : server_.bind_to_port("127.0.0.1", port_) ? port_
                                                                 : -1;
    if (bound <= 0)
      throw Failure(CHASSIS_UNAVAILABLE,
                    "port " + std::to_string(port_) + " of 127.0.0.1 cannot be used" +
                        (errno != 0 ? std::string(": ") + std::strerror(errno) : std::string()),
                    "; choose another port in [log.webpage]");
    auto serves = std::make_shared<std::promise<void>>();
    std::future<void> does_serve = serves->get_future();
    server_.new_task_queue = [serves = std::move(serves)]() mutable {
      auto* const threads = new httplib::ThreadPool(kNumThreads);  // the library owns it
      if (serves) serves->set_value();
      serves.reset();
      return threads;
    };
    thread_ = std::thread([this] {
      server_.listen_after_bind();
      server_.new_task_queue = nullptr;  // ends the wait below if it never served
    });
    does_serve.wait();
    host().log(CHASSIS_LOG_INFO, "the run as a page: http://127.0.0.1:" + std::to_string(bound) + "/");
  }
  void scalars(int64_t, double, std::span<const chassis_scalar_t>) override { changes_.add(); }
  void text(const chassis_sink_text_t&) override { changes_.add(); }
  void finish(const chassis_sink_finish_t&) override { stop(); }

 private:
  void stop() {
    changes_.end();
    if (!thread_.joinable()) return;
    server_.stop();
    thread_.join();
  }

  // A page of another site must not read this one under a name that leads to 127.0.0.1.
  static bool is_own_name(const httplib::Request& request) {
    if (request.get_header_value_count("Host") != 1) return false;
    const std::string host = request.get_header_value("Host");
    const size_t colon = host.find(':');
    const std::string_view name = std::string_view(host).substr(0, colon);
    const bool has_port =
        colon == std::string::npos || host.find_first_not_of("0123456789", colon + 1) == std::string::npos;
    return has_port && (name == "127.0.0.1" || strcasecmp(std::string(name).c_str(), "localhost") == 0);
  }

  void serve() {
    // The library's own options would let two runs share a port.
    server_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    server_.set_tcp_nodelay(true);
    server_.set_read_timeout(std::chrono::seconds(2));
    server_.set_write_timeout(std::chrono::seconds(5));
    server_.set_keep_alive_timeout(1);
    server_.set_payload_max_length(1 << 10);
    server_.set_pre_routing_handler([](const httplib::Request& request, httplib::Response& response) {
      // The library would copy the page once for each range that a client asks for. Ranges may be ignored (RFC 9110,
      // §14.2); the request is the library's own object, which it gives as const.
      const_cast<httplib::Request&>(request).ranges.clear();
      response.set_header("Cache-Control", "no-store");
      response.set_header("X-Content-Type-Options", "nosniff");
      if (is_own_name(request) && (request.method == "GET" || request.method == "HEAD"))
        return httplib::Server::HandlerResponse::Unhandled;
      response.status = is_own_name(request) ? 405 : 403;
      return httplib::Server::HandlerResponse::Handled;
    });
    const auto answer = [](httplib::Response& response, const char* type, auto&& make) {
      try {
        response.set_content(make(), type);
      } catch (const std::exception& error) {
        response.status = 503;
        response.set_content(std::string("the files of the run cannot be read: ") + error.what() + "\n", "text/plain");
      }
    };
    server_.Get("/", [this, answer](const httplib::Request&, httplib::Response& response) {
      answer(response, "text/html; charset=utf-8", [this] { return page_->html(/*is_live=*/true); });
    });
    server_.Get("/data", [this, answer](const httplib::Request& request, httplib::Response& response) {
      const std::string text = request.get_param_value("since");
      int64_t since = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), since);
      if (!text.empty() && (error != std::errc() || end != text.data() + text.size() || since < 0)) {
        response.status = 400;
        return response.set_content("since is not a step\n", "text/plain");
      }
      answer(response, "application/json", [&] { return page_->data(since); });
    });
    server_.Get("/events", [this](const httplib::Request&, httplib::Response& response) { send_events(response); });
  }

  void send_events(httplib::Response& response) {
    if (num_readers_.fetch_add(1) >= kMaxReaders) {
      --num_readers_;
      response.status = 503;
      return response.set_content("too many pages follow this run\n", "text/plain");
    }
    auto seen = std::make_shared<uint64_t>(0);
    response.set_chunked_content_provider(
        "text/event-stream",
        [this, seen](size_t, httplib::DataSink& sink) {
          const std::optional<uint64_t> count = changes_.wait(*seen, std::chrono::seconds(5));
          if (!count) {
            sink.done();
            return true;
          }
          // A comment shows whether the reader is still there.
          const std::string text = *count == *seen ? ": \n\n" : "data: " + std::to_string(*count) + "\n\n";
          *seen = *count;
          if (!sink.write(text.data(), text.size())) return false;
          for (int i = 0; i < 10 && !changes_.has_ended(); ++i)  // at most one message a second
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
          return true;
        },
        [this](bool) { --num_readers_; });
  }

  const int port_;
  std::optional<RunPage> page_;
  Changes changes_;
  std::atomic<int> num_readers_ = 0;
  httplib::Server server_;
  std::thread thread_;
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.options/1\n"
    "requires=chassis.log/1\n"
    "license=Apache-2.0\n",
    Webpage)
