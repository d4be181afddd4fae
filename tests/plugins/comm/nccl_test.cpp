// nccl: refusals without a GPU; with GPUs (label gpu), every op with one rank per GPU.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <condition_variable>
#include <map>
#include <numeric>

#include "chassis/kind/comm.h"
#include "host/plugin/status.hpp"
#include "host/plugin/thread_role.hpp"
#include "host/service/device.hpp"
#include "plugins/comm/nccl/shared_memory.hpp"
#include "tests/support/comm_ranks.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

std::string refusal(uint32_t device_type) {
  test::RankPlugins plugins;
  const auto nccl = plugins.make("comm", "nccl", {{"library", "/nowhere/libnccl.so.2"}});
  const auto& table = nccl->interface<chassis_comm_backend_t>(CHASSIS_COMM_BACKEND_ID);
  EXPECT_EQ(table.properties, CHASSIS_COMM_ROUNDS_HALVES);
  EXPECT_NE(table.wait_on_stream, nullptr);
  chassis_status_t* status = table.supports(nccl->get(), device_type, 0);
  EXPECT_EQ(status_code(status), CHASSIS_UNIMPLEMENTED);
  std::string text = status_text(status);
  status_release(status);
  return text;
}

TEST(Nccl, RefusesMemoryOfTheCpu) {
  EXPECT_EQ(refusal(CHASSIS_DEVICE_CPU), "nccl serves CUDA memory; this run is on the CPU: use gloo");
}

TEST(Nccl, SaysWhichLibraryIsMissing) {
  const std::string text = refusal(CHASSIS_DEVICE_CUDA);
  EXPECT_HAS(text, "NCCL's library cannot be loaded: /nowhere/libnccl.so.2");
  EXPECT_HAS(text, "or name its path in [comm] library");
}

TEST(Nccl, WarnsOfLittleSharedMemoryWithBothNumbers) {
  using comm_nccl::shared_memory_warning;
  const std::string text = shared_memory_warning(uint64_t{64} << 20, nullptr);
  EXPECT_HAS(text, "/dev/shm has 64 MiB free, and NCCL may need up to 1024 MiB there");
  EXPECT_HAS(text, "`docker run --shm-size=1g`");
  EXPECT_EQ(shared_memory_warning(uint64_t{1} << 30, nullptr), "");
  EXPECT_EQ(shared_memory_warning(uint64_t{64} << 20, "1"), "") << "NCCL_SHM_DISABLE=1";
  EXPECT_HAS(shared_memory_warning(uint64_t{64} << 20, "0"), "64 MiB");
  EXPECT_EQ(shared_memory_warning(comm_nccl::free_shared_bytes("/no such folder"), nullptr), "");
}

// A store for ranks that are threads.
class ThreadStore {
 public:
  ThreadStore() {
    table_.struct_size = sizeof table_;
    table_.impl = this;
    table_.set = [](const chassis_store_t* s, chassis_str_t key, chassis_str_t value) -> chassis_status_t* {
      const std::lock_guard lock(self(s).mutex_);
      self(s).values_[std::string(view_of(key))] = view_of(value);
      self(s).changed_.notify_all();
      return nullptr;
    };
    table_.get = [](const chassis_store_t* s, chassis_str_t key, uint64_t timeout_ns,
                    void (*take)(void*, chassis_str_t), void* context) -> chassis_status_t* {
      std::unique_lock lock(self(s).mutex_);
      const std::string name(view_of(key));
      if (!self(s).changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns),
                                     [&] { return self(s).values_.contains(name); }))
        return make_status(CHASSIS_DEADLINE_EXCEEDED, name);
      take(context, str_of(self(s).values_[name]));
      return nullptr;
    };
  }
  const chassis_store_t* table() const { return &table_; }

 private:
  static ThreadStore& self(const chassis_store_t* s) { return *static_cast<ThreadStore*>(s->impl); }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  chassis_store_t table_{};
};

// One rank's group, with calls on tensors of 0, 1, 2 … plus the rank.
class GpuRank {
 public:
  GpuRank(const Instance& nccl, ThreadStore& store, int rank, int size) : nccl_(nccl), rank_(rank), size_(size) {
    device_ = device_of(*device_spec_named("cuda"), rank);
    chassis_comm_group_desc_t desc{};
    desc.struct_size = sizeof desc;
    desc.size = static_cast<uint32_t>(size);
    desc.rank = static_cast<uint32_t>(rank);
    desc.device_type = CHASSIS_DEVICE_CUDA;
    desc.device_index = rank;
    desc.name = str_of("gpus");
    desc.store = store.table();
    desc.timeout_ns = 60'000'000'000;
    nccl_.check(table().create_group(nccl_.get(), &desc, &group_));
  }
  ~GpuRank() { table().destroy_group(nccl_.get(), group_); }

  Tensor counting(int64_t count) const {
    const Tensor out = Tensor::empty(std::array{count}, Dtype::f32);
    std::iota(out.data_as<float>(), out.data_as<float>() + count, static_cast<float>(rank_));
    return out.to(device_);
  }
  Tensor zeros(int64_t count) const { return Tensor::zeros(std::array{count}, Dtype::f32, device_); }
  static std::vector<float> read(const Tensor& tensor) {
    const Tensor here = tensor.to(Device{});
    return {here.data_as<float>(), here.data_as<float>() + here.num_elements()};
  }

  void run(std::vector<chassis_collective_t> calls) {
    chassis_backend_work_t* work = nullptr;
    std::vector<const chassis_collective_t*> batch;
    for (const chassis_collective_t& call : calls) batch.push_back(&call);
    nccl_.check(table().start(nccl_.get(), group_, batch.data(), static_cast<uint32_t>(batch.size()), nullptr, &work));
    nccl_.check(table().wait_on_stream(nccl_.get(), work, nullptr));
    nccl_.check(table().wait(nccl_.get(), work, 60'000'000'000));
    EXPECT_EQ(table().done(nccl_.get(), work), 1);
    table().release(nccl_.get(), work);
  }
  static chassis_collective_t call(uint32_t op, const Tensor& send, const Tensor& recv, uint64_t count, int peer = 0) {
    return {sizeof(chassis_collective_t),
            op,
            CHASSIS_DTYPE_F32,
            CHASSIS_REDUCE_SUM,
            send ? send.data() : nullptr,
            recv ? recv.data() : nullptr,
            count,
            nullptr,
            nullptr,
            peer,
            0,
            str_of("x")};
  }
  void abort() { table().abort(nccl_.get(), group_); }
  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  const chassis_comm_backend_t& table() const {
    return nccl_.interface<chassis_comm_backend_t>(CHASSIS_COMM_BACKEND_ID);
  }
  const Instance& nccl_;
  const int rank_, size_;
  Device device_;
  chassis_backend_group_t* group_ = nullptr;
};

void every_op(GpuRank& gpu) {
  const int64_t size = gpu.size(), rank = gpu.rank(), count = 1000;
  const auto elements = static_cast<uint64_t>(count);
  const float ranks = static_cast<float>(size * (size - 1) / 2);

  const Tensor part = gpu.counting(count), whole = gpu.zeros(size * count), all = gpu.counting(size * count);
  const Tensor sum = gpu.zeros(count), piece = gpu.zeros(count), exchanged = gpu.zeros(size * count);
  gpu.run({GpuRank::call(CHASSIS_COMM_ALL_GATHER, part, whole, elements),
           GpuRank::call(CHASSIS_COMM_ALL_REDUCE, part, sum, elements),
           GpuRank::call(CHASSIS_COMM_REDUCE_SCATTER, all, piece, elements),
           GpuRank::call(CHASSIS_COMM_ALL_TO_ALL, all, exchanged, elements),
           GpuRank::call(CHASSIS_COMM_BARRIER, {}, {}, 0)});
  for (int64_t r = 0; r < size; ++r) {
    EXPECT_EQ(GpuRank::read(whole)[static_cast<size_t>(r * count + 5)], static_cast<float>(r + 5));
    EXPECT_EQ(GpuRank::read(exchanged)[static_cast<size_t>(r * count + 5)], static_cast<float>(rank * count + r + 5));
  }
  EXPECT_EQ(GpuRank::read(sum)[7], static_cast<float>(7 * size) + ranks);
  EXPECT_EQ(GpuRank::read(piece)[7], static_cast<float>((rank * count + 7) * size) + ranks);

  // Rank r has r + 1 elements.
  std::vector<uint64_t> counts(static_cast<size_t>(size));
  std::iota(counts.begin(), counts.end(), uint64_t{1});
  const int64_t total = size * (size + 1) / 2, first = rank * (rank + 1) / 2;
  const Tensor parts = gpu.zeros(total), pieces = gpu.zeros(rank + 1), root = gpu.counting(count);
  auto gather = GpuRank::call(CHASSIS_COMM_ALL_GATHER, part, parts, 0);
  auto scatter = GpuRank::call(CHASSIS_COMM_REDUCE_SCATTER, all, pieces, 0);
  gather.counts = scatter.counts = counts.data();
  gpu.run({gather, scatter});
  gpu.run({GpuRank::call(CHASSIS_COMM_BROADCAST, root, root, elements, static_cast<int>(size - 1))});
  for (int64_t r = 0; r < size; ++r)
    EXPECT_EQ(GpuRank::read(parts)[static_cast<size_t>(r * (r + 1) / 2 + r)], static_cast<float>(2 * r));
  EXPECT_EQ(GpuRank::read(pieces)[0], static_cast<float>(first * size) + ranks);
  EXPECT_EQ(GpuRank::read(root)[3], static_cast<float>(size - 1 + 3));
  if (size == 1) return;
  const Tensor got = gpu.zeros(count);
  gpu.run({GpuRank::call(CHASSIS_COMM_SEND, part, {}, elements, static_cast<int>((rank + 1) % size)),
           GpuRank::call(CHASSIS_COMM_RECV, {}, got, elements, static_cast<int>((rank + size - 1) % size))});
  EXPECT_EQ(GpuRank::read(got)[9], static_cast<float>((rank + size - 1) % size + 9));
}

int num_gpus() {
  int count = 0;
  while (count < 16) {
    try {
      choose_device("cuda:" + std::to_string(count));
    } catch (const Error&) {
      break;
    }
    ++count;
  }
  return count;
}

TEST(NcclGpu, AGroupOfOneGpuRefusesCallsAfterItWasAborted) {
  if (num_gpus() == 0) GTEST_SKIP() << "no GPU";
  const ThreadRoleScope role(ThreadRole::kStep);
  ThreadStore store;
  test::RankPlugins plugins;
  const auto nccl = plugins.make("comm", "nccl");
  GpuRank gpu(*nccl, store, 0, 1);
  const test::RankEnd before = test::rank_end([&] { every_op(gpu); });
  EXPECT_FALSE(before.failed) << before.text;
  gpu.abort();
  const test::RankEnd after = test::rank_end([&] { gpu.run({GpuRank::call(CHASSIS_COMM_BARRIER, {}, {}, 0)}); });
  ASSERT_TRUE(after.failed);
  EXPECT_HAS(after.text, "the group was aborted");
}

TEST(NcclGpu, EveryOpBetweenAllGpus) {
  const int size = num_gpus();
  if (size == 0) GTEST_SKIP() << "no GPU";
  for (const bool registered : {false, true}) {
    ThreadStore store;
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < size; ++rank) {
      ranks.emplace_back([&, rank] {
        const ThreadRoleScope role(ThreadRole::kStep);
        const test::RankEnd end = test::rank_end([&] {
          test::RankPlugins plugins;
          const auto nccl = plugins.make("comm", "nccl", {{"register_buffers", registered}});
          GpuRank gpu(*nccl, store, rank, size);
          every_op(gpu);
        });
        EXPECT_FALSE(end.failed) << end.text;
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
}

}  // namespace
}  // namespace chassis
