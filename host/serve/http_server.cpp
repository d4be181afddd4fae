// One object for each connection, which lives as long as it has an operation in progress. Each operation calls the next
// step: head, body, answer, close.
#include "host/serve/http_server.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <list>
#include <optional>
#include <system_error>
#include <utility>

#include "chassis/http.hpp"
#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "host/base/thread.hpp"

namespace chassis {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::milliseconds kAcceptPause{100};  // after a connection that could not be accepted
constexpr size_t kMaxForgottenBytes = 16 << 20;         // read after the request, so that its client gets an answer

Error port_error(uint16_t port, const boost::system::system_error& error) {
  return config_error(fmt::format("port {} of 127.0.0.1: {}", port, error.code().message()))
      .hint("--port 0 takes a free port");
}

void close_on_exec(int descriptor) { fcntl(descriptor, F_SETFD, FD_CLOEXEC); }

}  // namespace

class HttpServer::State {
 public:
  State(uint16_t port, HttpHandler handler, HttpLimits limits);
  ~State();

  uint16_t port() const { return acceptor_.local_endpoint().port(); }
  void start();

 private:
  friend class Connection;

  void accept();
  void take(tcp::socket socket);
  bool has_room() const;
  void run();
  std::string error_text(int status, const std::string& message) const {
    return http_text({status, handler_.error_body(status, message)});
  }

  // Connections refer to these members until io_ is destroyed.
  const HttpHandler handler_;
  const HttpLimits limits_;
  size_t num_connections_ = 0, num_lingering_ = 0, num_dropped_ = 0;
  std::list<Connection*> incomplete_;  // those whose request is not complete, the oldest first
  asio::io_context io_{1};
  tcp::acceptor acceptor_{io_};
  asio::steady_timer pause_{io_};
  bool is_ending_ = false;
  Thread thread_;
};

class HttpServer::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(State& server, tcp::socket socket) : server_(server), socket_(std::move(socket)), timer_(server.io_) {
    parser_.header_limit(static_cast<uint32_t>(server_.limits_.head_bytes));
    parser_.body_limit(server_.limits_.body_bytes);
    place_ = server_.incomplete_.insert(server_.incomplete_.end(), this);
    ++server_.num_connections_;
  }
  ~Connection() {
    if (reply_) reply_->close();
    leave_incomplete();
    --server_.num_connections_;
    if (is_dropped_) --server_.num_dropped_;
    if (is_lingering_) --server_.num_lingering_;
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

 private:
  // A handler that keeps this object alive, and closes the connection if `body` throws.
  template <class Body>
  auto guarded(Body body) {
    return [self = shared_from_this(), body](error_code error, size_t count = 0) {
      try {
        body(error, count);
      } catch (...) {  // out of memory
        self->close();
      }
    };
  }

 public:
  void start() {
    expire_after(server_.limits_.request_time);
    http::async_read_header(socket_, buffer_, parser_, guarded([this](error_code error, size_t) { on_head(error); }));
  }

  bool is_older_than(std::chrono::milliseconds time) const { return std::chrono::steady_clock::now() - began_ > time; }
  // Closes a connection whose request is not complete. It lives until its operations have ended.
  void drop() {
    is_dropped_ = true;
    ++server_.num_dropped_;
    leave_incomplete();
    close();
  }

 private:
  void leave_incomplete() {
    if (place_) server_.incomplete_.erase(*std::exchange(place_, std::nullopt));
  }
  void expire_after(std::chrono::milliseconds time) {
    has_deadline_ = true;
    timer_.expires_after(time);
    timer_.async_wait(guarded([this](error_code error, size_t) {
      if (!error && has_deadline_ && timer_.expiry() <= std::chrono::steady_clock::now()) close();
    }));
  }
  void expire_never() {
    has_deadline_ = false;
    timer_.cancel();
  }

  void on_head(error_code error) {
    if (is_dropped_) return close();
    if (error) return refuse(error);
    const auto& message = parser_.get();
    const auto text = [&](http::field field) {
      const auto value = message[field];
      return std::string(value.data(), value.size());
    };
    const std::string target(message.target().data(), message.target().size());
    head_ = {.method = std::string(message.method_string().data(), message.method_string().size()),
             .path = target.substr(0, target.find('?')),
             .content_type = text(http::field::content_type),
             .authorization = text(http::field::authorization)};
    const std::string host = text(http::field::host);
    if (has_foreign_host(
            {.method = {}, .path = {}, .query = {}, .host = host, .num_hosts = message.count(http::field::host)}))
      return refuse(403, "this server's names are 127.0.0.1 and localhost");
    if (message.count(http::field::transfer_encoding) > 0 &&
        !is_same_ignoring_case(text(http::field::transfer_encoding), "chunked"))
      return refuse(501, "the only transfer coding here is chunked");
    if (std::optional<HttpResponse> response = server_.handler_.on_head(head_)) return answer(*response);
    if (!is_same_ignoring_case(text(http::field::expect), "100-continue")) return read_body();
    sending_ = "HTTP/1.1 100 Continue\r\n\r\n";
    asio::async_write(socket_, asio::buffer(sending_), guarded([this](error_code failed, size_t) {
                        if (failed) return close();
                        read_body();
                      }));
  }

  void read_body() {
    http::async_read(socket_, buffer_, parser_, guarded([this](error_code error, size_t) { on_body(error); }));
  }

  void on_body(error_code error) {
    if (is_dropped_) return close();
    if (error) return refuse(error);
    begin_reply();
    try {
      server_.handler_.on_request(head_, std::move(parser_.get().body()), reply_);
    } catch (const std::exception& failure) {
      log::error("a request was not answered: {}", failure.what());
      reply_->answer({500, server_.handler_.error_body(500, "the server failed; its log says why")});
    }
    send();
  }

  // Answers a request that is not one, unless the client has gone.
  void refuse(error_code error) {
    if (error == http::error::header_limit || error == http::error::buffer_overflow)
      return refuse(431, fmt::format("the head of a request has at most {} bytes", server_.limits_.head_bytes));
    if (error == http::error::body_limit)
      return refuse(413, fmt::format("the body of a request has at most {} bytes", server_.limits_.body_bytes));
    const bool has_gone = error == http::error::end_of_stream || error == http::error::partial_message;
    if (has_gone || error.category() != http::make_error_code(http::error::bad_method).category()) return close();
    refuse(400, "this is not an HTTP/1.1 request: " + error.message());
  }
  void refuse(int status, const std::string& message) {
    answer({status, server_.handler_.error_body(status, message)});
  }
  void answer(const HttpResponse& response) {
    begin_reply();
    reply_->answer(response);
    send();
  }

  void begin_reply() {
    leave_incomplete();
    reply_ = std::make_shared<HttpReply>(server_.limits_.unsent_bytes);
    reply_->open([weak = weak_from_this(), executor = socket_.get_executor()] {
      asio::post(executor, [weak] {
        if (const auto self = weak.lock()) self->guarded([&](error_code, size_t) { self->send(); })(error_code());
      });
    });
    expire_never();
    watch();
  }

  // Reads on, to learn when the client closes. One that closes only its sending side counts as gone.
  void watch() {
    socket_.async_read_some(asio::buffer(forgotten_), guarded([this](error_code error, size_t count) {
                              num_forgotten_ += count;
                              if (error || num_forgotten_ > kMaxForgottenBytes) return close();
                              watch();
                            }));
  }

  void send() {
    if (!reply_->is_open()) return close();
    if (is_sending_ || is_lingering_) return;
    HttpReply::Taken taken = reply_->take();
    if (taken.bytes.empty()) {
      if (taken.has_ended) linger();
      return;
    }
    is_sending_ = true;
    sending_ = std::move(taken.bytes);
    expire_after(server_.limits_.write_time);
    asio::async_write(socket_, asio::buffer(sending_), guarded([this](error_code error, size_t) {
                        is_sending_ = false;
                        if (error) return close();
                        expire_never();
                        send();
                      }));
  }

  // A connection that is closed with bytes left to read is reset, and the answer may be lost.
  void linger() {
    report();
    is_lingering_ = true;
    ++server_.num_lingering_;
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    expire_after(server_.limits_.linger_time);
  }

  void close() {
    if (reply_) reply_->close();
    report();
    error_code ignored;
    socket_.close(ignored);
    expire_never();
  }

  void report() {
    if (!reply_ || !server_.handler_.on_end || std::exchange(is_reported_, true)) return;
    server_.handler_.on_end(head_, *reply_, std::chrono::steady_clock::now() - began_);
  }

  State& server_;
  tcp::socket socket_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  asio::steady_timer timer_;
  bool has_deadline_ = false;
  boost::beast::flat_buffer buffer_{64 << 10};
  http::request_parser<http::string_body> parser_;
  HttpHead head_;
  std::shared_ptr<HttpReply> reply_;
  std::string sending_;
  bool is_sending_ = false, is_lingering_ = false, is_reported_ = false, is_dropped_ = false;
  std::optional<std::list<Connection*>::iterator> place_;  // in server_.incomplete_
  std::array<char, 16 << 10> forgotten_;
  size_t num_forgotten_ = 0;
};

HttpServer::State::State(uint16_t port, HttpHandler handler, HttpLimits limits)
    : handler_(std::move(handler)), limits_(limits) {
  try {
    acceptor_.open(tcp::v4());
    close_on_exec(acceptor_.native_handle());
    acceptor_.set_option(tcp::acceptor::reuse_address(true));
    acceptor_.bind({asio::ip::address_v4::loopback(), port});
  } catch (const boost::system::system_error& error) {
    throw port_error(port, error);
  }
}

HttpServer::State::~State() {
  if (!thread_.joinable()) return;
  asio::post(io_, [this] {
    is_ending_ = true;
    error_code ignored;
    acceptor_.close(ignored);
    pause_.cancel();
    io_.stop();
  });
  thread_.join();
}

void HttpServer::State::start() {
  try {
    acceptor_.listen();  // fails if another program took the port in the meantime
  } catch (const boost::system::system_error& error) {
    throw port_error(port(), error);
  }
  accept();
  thread_ = Thread("http server", [this] { run(); });
}

void HttpServer::State::run() {
  const auto run_without_end = [&](auto&& run_once) {
    for (bool again = true; again;) {
      again = false;
      try {
        run_once();
      } catch (...) {  // out of memory: the operation is lost, the server goes on
        again = true;
      }
    }
  };
  run_without_end([&] { io_.run(); });
  io_.restart();
  run_without_end([&] { io_.run_for(limits_.shutdown_time); });
}

void HttpServer::State::accept() {
  acceptor_.async_accept([this](error_code error, tcp::socket socket) {
    if (is_ending_) return;
    if (!error) {
      try {
        take(std::move(socket));
      } catch (...) {  // out of memory: this connection is closed
      }
      return accept();
    }
    // Without a pause, the acceptor would stay ready, and the thread busy, until a descriptor is free.
    pause_.expires_after(kAcceptPause);
    pause_.async_wait([this](error_code) {
      if (!is_ending_) accept();
    });
  });
}

// A client that has its answer may send its next request before it closes the connection.
bool HttpServer::State::has_room() const {
  return num_connections_ - num_lingering_ - num_dropped_ < limits_.num_connections &&
         num_connections_ < 2 * limits_.num_connections;
}

void HttpServer::State::take(tcp::socket socket) {
  close_on_exec(socket.native_handle());
  // Clients that send no more than a part of a request do not shut out the others.
  if (!has_room() && !incomplete_.empty() && incomplete_.front()->is_older_than(limits_.patience))
    incomplete_.front()->drop();
  if (has_room()) return std::make_shared<Connection>(*this, std::move(socket))->start();
  error_code ignored;
  socket.non_blocking(true, ignored);
  socket.write_some(
      asio::buffer(error_text(503, fmt::format("{} connections are open already", limits_.num_connections))), ignored);
  socket.shutdown(tcp::socket::shutdown_send, ignored);
}

HttpServer::HttpServer(uint16_t port, HttpHandler handler, HttpLimits limits)
    : state_(std::make_unique<State>(port, std::move(handler), limits)) {}

HttpServer::~HttpServer() = default;

uint16_t HttpServer::port() const { return state_->port(); }

void HttpServer::start() { state_->start(); }

}  // namespace chassis
