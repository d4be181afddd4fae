// Messages through c10d::ProcessGroupGloo, which the ranks set up through the host's store.
#include "transport.hpp"

#include <ATen/ops/from_blob.h>
#include <signal.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <mutex>
#include <utility>
#include <vector>

namespace comm_gloo {
namespace {

// Waits end with success, a closed connection or abort: the host has its own deadline, and a time limit inside Gloo
// would close all connections.
constexpr auto kForever = std::chrono::milliseconds(std::chrono::hours(24 * 365));

// While it exists, a write to a connection that the peer has closed fails instead of ending the process. Threads
// started meanwhile inherit this.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  ~WithoutSigpipe() {
    const timespec now = {};
    if (!was_pending_) sigtimedwait(&sigpipe_, nullptr, &now);  // consumes a signal that a write has caused
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t sigpipe_, before_;
  bool was_pending_ = false;
};

// The host's store as a c10d::Store.
class HostStore final : public c10d::Store {
 public:
  HostStore(const CommStore& store, std::chrono::milliseconds timeout) : c10d::Store(timeout), store_(store) {}

  c10::intrusive_ptr<c10d::Store> clone() override { return c10::make_intrusive<HostStore>(store_, timeout_); }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    store_.set(key, {reinterpret_cast<const char*>(value.data()), value.size()});
  }
  std::vector<uint8_t> get(const std::string& key) override {
    const std::string value = store_.get(key, timeout_);
    return {value.begin(), value.end()};
  }
  int64_t add(const std::string& key, int64_t value) override { return store_.add(key, value); }
  bool check(const std::vector<std::string>& keys) override {
    try {
      for (const std::string& key : keys) store_.get(key, std::chrono::nanoseconds(0));
      return true;
    } catch (const Failure& failure) {
      if (failure.code() != CHASSIS_DEADLINE_EXCEEDED) throw;
      return false;
    }
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    for (const std::string& key : keys) store_.get(key, timeout);
  }
  bool deleteKey(const std::string&) override { return false; }
  int64_t getNumKeys() override { throw Failure(CHASSIS_UNIMPLEMENTED, "the host's store does not count its keys"); }

 private:
  CommStore store_;
};

// Gloo's message without its source location: "Connection closed by peer [127.0.0.1]:4711".
std::string reason(const std::exception& error) {
  std::string text = error.what();
  if (const size_t end = text.find("] "); text.starts_with('[') && end != std::string::npos) text.erase(0, end + 2);
  return text.substr(0, text.find('\n'));
}

Failure lost_peer(uint32_t peer, const std::exception& error) {
  return std::move(Failure(CHASSIS_ABORTED, reason(error)).with("peer", std::to_string(peer)));
}

class GlooMessage final : public Message {
 public:
  GlooMessage(c10::intrusive_ptr<c10d::Work> work, uint32_t peer) : work_(std::move(work)), peer_(peer) {}
  bool wait() override {
    try {
      return done_ = done_ || work_->wait(kForever);
    } catch (const std::exception& error) {
      throw lost_peer(peer_, error);
    }
  }
  void abort() noexcept override { work_->abort(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  uint32_t peer_;
  bool done_ = false;
};

class GlooTransport final : public Transport {
 public:
  explicit GlooTransport(c10::intrusive_ptr<c10d::ProcessGroupGloo> group) : group_(std::move(group)) {}

  std::unique_ptr<Message> send(uint32_t peer, const void* data, uint64_t num_bytes, uint32_t tag) override {
    return post(peer, const_cast<void*>(data), num_bytes,
                [&](auto& tensors, int to) { return group_->send(tensors, to, static_cast<int>(tag)); });
  }
  std::unique_ptr<Message> recv(uint32_t peer, void* data, uint64_t num_bytes, uint32_t tag) override {
    return post(peer, data, num_bytes,
                [&](auto& tensors, int from) { return group_->recv(tensors, from, static_cast<int>(tag)); });
  }

 private:
  template <typename Start>
  std::unique_ptr<Message> post(uint32_t peer, void* data, uint64_t num_bytes, Start&& start) {
    std::vector<at::Tensor> tensors = {at::from_blob(data, {static_cast<int64_t>(num_bytes)}, at::kByte)};
    const std::lock_guard lock(mutex_);  // the process group numbers its messages
    const WithoutSigpipe no_sigpipe;
    try {
      return std::make_unique<GlooMessage>(start(tensors, static_cast<int>(peer)), peer);
    } catch (const std::exception& error) {
      throw lost_peer(peer, error);
    }
  }

  std::mutex mutex_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
};

}  // namespace

std::unique_ptr<Transport> connect_ranks(const CommGroupDesc& desc, const TransportOptions& options) {
  using Gloo = c10d::ProcessGroupGloo;
  const auto timeout = std::chrono::duration_cast<std::chrono::milliseconds>(desc.timeout);
  const auto settings = Gloo::Options::create(timeout);
  settings->threads = 1;  // none of Gloo's own collectives are used
  const WithoutSigpipe no_sigpipe;
  try {
    for (int i = 0; i < options.num_connections; ++i) {
      settings->devices.push_back(options.interface.empty() ? Gloo::createDeviceForHostname(desc.host)
                                                            : Gloo::createDeviceForInterface(options.interface));
    }
    return std::make_unique<GlooTransport>(
        c10::make_intrusive<Gloo>(c10::make_intrusive<HostStore>(desc.store, timeout), static_cast<int>(desc.rank),
                                  static_cast<int>(desc.size), settings));
  } catch (const Failure&) {
    throw;
  } catch (const std::exception& error) {
    throw Failure(CHASSIS_UNAVAILABLE, reason(error))
        .with("address", options.interface.empty() ? desc.host : options.interface);
  }
}

}  // namespace comm_gloo
