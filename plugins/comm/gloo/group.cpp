// Runs the batches of a group: posts their messages, and reduces chunk by chunk on the group's thread.
#include "group.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <system_error>
#include <utility>

#include "reduce.hpp"

namespace comm_gloo {
namespace {

// Limits for the pieces of other ranks: large enough to hide latencies, and small enough to be still in a cache when
// they are added up.
constexpr uint64_t kMaxChunkBytes = 512 << 10;
constexpr uint64_t kPieceBytes = 32 << 20;

// The same on all ranks, and a multiple of every element size.
uint64_t chunk_bytes(uint32_t size) {
  return std::clamp<uint64_t>(kPieceBytes / (2 * uint64_t{size}) / 4096 * 4096, 4096, kMaxChunkBytes);
}

}  // namespace

// A batch in flight.
class Job {
 public:
  explicit Job(Schedule schedule) : schedule(std::move(schedule)) {}

  Schedule schedule;
  std::deque<std::unique_ptr<Message>> messages;  // guarded by the group's mutex

  bool is_done() const noexcept { return done_.load(std::memory_order_acquire); }
  // After this nothing touches the buffers.
  void finish(std::exception_ptr error) {
    messages.clear();
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
    done_.store(true, std::memory_order_release);
    changed_.notify_all();
  }
  bool wait(std::chrono::nanoseconds timeout) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [&] { return is_done(); })) return false;
    if (error_) std::rethrow_exception(error_);
    return true;
  }
  void wait_until_done() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_done(); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> done_ = false;
  std::exception_ptr error_;
};

namespace {

class GlooWork final : public BackendWork {
 public:
  GlooWork(GlooGroup& group, std::shared_ptr<Job> job) : group_(group), job_(std::move(job)) {}
  ~GlooWork() override {
    if (job_->is_done()) return;
    group_.abort();
    job_->wait_until_done();
  }
  bool wait(std::chrono::nanoseconds timeout) override { return job_->wait(timeout); }
  bool done() noexcept override { return job_->is_done(); }

 private:
  GlooGroup& group_;
  std::shared_ptr<Job> job_;
};

}  // namespace

GlooGroup::GlooGroup(const Host& host, const CommGroupDesc& desc, const TransportOptions& options)
    : host_(host),
      shape_{desc.size, desc.rank, static_cast<uint32_t>(options.num_connections), chunk_bytes(desc.size)},
      tags_(desc.size),
      transport_(connect_ranks(desc, options)) {
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw Failure(CHASSIS_RESOURCE_EXHAUSTED,
                  "out of memory, or of threads: that of the group cannot start: ", error.what());
  }
}

GlooGroup::~GlooGroup() {
  abort();
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::unique_ptr<BackendWork> GlooGroup::start(std::span<const chassis_collective_t> calls, void*) {
  auto job = std::make_shared<Job>(make_schedule(calls, shape_, tags_));
  const Schedule& schedule = job->schedule;
  if (!schedule.reductions.empty() && !pieces_)
    pieces_.emplace(host_, static_cast<int64_t>(2 * (shape_.size - 1) * shape_.chunk_bytes));
  // Receives are posted first, so that they are ready when the peers send.
  for (const Recv& m : schedule.recvs) job->messages.push_back(transport_->recv(m.peer, m.data, m.num_bytes, m.tag));
  for (const Send& m : schedule.sends) job->messages.push_back(transport_->send(m.peer, m.data, m.num_bytes, m.tag));
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(job);
  }
  changed_.notify_all();
  return std::make_unique<GlooWork>(*this, std::move(job));
}

void GlooGroup::abort() noexcept {
  aborted_ = true;
  const std::lock_guard lock(mutex_);
  for (const auto& job : queue_) {
    for (const auto& message : job->messages) message->abort();
  }
}

void GlooGroup::run() {
  for (std::unique_lock lock(mutex_);;) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::shared_ptr<Job> job = queue_.front();
    lock.unlock();
    std::exception_ptr error;
    try {
      execute(*job);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    queue_.pop_front();
    lock.unlock();
    job->finish(std::move(error));
    lock.lock();
  }
}

void GlooGroup::wait(Message& message) {
  if (aborted_ || !message.wait()) throw Failure(CHASSIS_CANCELLED, "the group was aborted");
}

void GlooGroup::execute(Job& job) {
  for (const Copy& copy : job.schedule.copies) std::copy_n(copy.from, copy.num_bytes, copy.to);
  reduce_all(job);
  for (const auto& message : job.messages) wait(*message);
}

char* GlooGroup::piece(char* memory, uint32_t peer) const {
  const uint32_t index = peer < shape_.rank ? peer : peer - 1;
  return memory + index * shape_.chunk_bytes;
}

std::vector<Message*> GlooGroup::receive_pieces(Job& job, const Reduction& part, char* memory) {
  std::vector<Message*> messages;
  for (uint32_t peer = 0; peer < shape_.size; ++peer) {
    if (peer == shape_.rank) continue;
    auto message = transport_->recv(peer, piece(memory, peer), part.count * dtype_bytes(part.dtype), part.tags[peer]);
    messages.push_back(message.get());
    const std::lock_guard lock(mutex_);
    job.messages.push_back(std::move(message));
  }
  return messages;
}

// Reduces one chunk while the next one arrives.
void GlooGroup::reduce_all(Job& job) {
  const std::vector<Reduction>& parts = job.schedule.reductions;
  const auto memory = [&](size_t i) { return pieces_->data() + (i % 2) * (shape_.size - 1) * shape_.chunk_bytes; };
  std::array<std::vector<Message*>, 2> arriving;
  if (!parts.empty()) arriving[0] = receive_pieces(job, parts[0], memory(0));
  std::vector<const void*> sources(shape_.size);
  for (size_t i = 0; i < parts.size(); ++i) {
    const Reduction& part = parts[i];
    if (i + 1 < parts.size()) arriving[(i + 1) % 2] = receive_pieces(job, parts[i + 1], memory(i + 1));
    for (Message* message : arriving[i % 2]) wait(*message);
    for (uint32_t r = 0; r < shape_.size; ++r) sources[r] = r == shape_.rank ? part.own : piece(memory(i), r);
    reduce_pieces(sources, part.out, part.count, part.dtype, part.reduce);
    for (const Send& m : part.results) {
      auto message = transport_->send(m.peer, m.data, m.num_bytes, m.tag);
      const std::lock_guard lock(mutex_);
      job.messages.push_back(std::move(message));
    }
  }
}

}  // namespace comm_gloo
