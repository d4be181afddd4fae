// Moves tensors among running ranks over a real backend, with failures at every point. Held bytes are counted in the
// callbacks.
#include "host/checkpoint/live_move.hpp"

#include <numeric>
#include <optional>

#include "host/state/move_order.hpp"
#include "ranks.hpp"
#include "tests/host/state/random_layout.hpp"

namespace chassis {
namespace {

using namespace testing;

void expect_ranks_move(int num_ranks, const std::function<void(Communicator&)>& body) {
  const auto ends =
      test::run_ranks(num_ranks, {}, [&](Communicator& communicator, test::RankPlugins&) { body(communicator); });
  for (const test::RankEnd& end : ends) EXPECT_FALSE(end.failed) << end.text;
}

// Tensors in two layouts, with their values.
struct Case {
  Model before, after;
  std::vector<ReshardTensor> tensors;
  LiveMoveOptions options{64, 0};
  std::string text;

  void add(Descriptor from, const MeshShape& mesh_a, Descriptor to, const MeshShape& mesh_b) {
    from.fqn = to.fqn = "t" + std::to_string(tensors.size());
    from.dtype = to.dtype;
    before.add(from);
    after.descriptors.push_back(to);
    after.wholes = before.wholes;
    tensors.push_back({Layout(from, mesh_a), Layout(to, mesh_b)});
    text += "\n" + from.text() + " on " + mesh_a.text() + "  →  " + to.text() + " on " + mesh_b.text();
  }
};

Case random_case(uint64_t seed, int num_ranks) {
  Dice dice(seed);
  Case out;
  const MeshShape mesh_a = random_mesh(dice, num_ranks), mesh_b = random_mesh(dice, num_ranks);
  for (int64_t n = dice.roll(1, 9); n > 0; --n) {
    const Shape shape = random_shape(dice, 100);
    const Descriptor from = random_descriptor(dice, mesh_a, shape);
    Descriptor to = dice.chance(10) && mesh_a.text() == mesh_b.text() ? from : random_descriptor(dice, mesh_b, shape);
    to.dtype = std::array{Dtype::f32, Dtype::bf16, Dtype::i64, Dtype::u8}[static_cast<size_t>(dice.roll(0, 3))];
    out.add(from, mesh_a, to, mesh_b);
  }
  out.options.bucket_bytes = dice.roll(8, dice.chance(50) ? 64 : 2000);
  out.options.room_bytes = dice.chance(60) ? 0 : dice.roll(0, 200);
  out.text = "seed " + std::to_string(seed) + ", bucket " + std::to_string(out.options.bucket_bytes) + ", room " +
             std::to_string(out.options.room_bytes) + out.text;
  return out;
}

bool is_held(const Layout& layout, int rank) { return rank < layout.world_size() && layout.holds(rank); }

// The tensors of one rank during one move.
class Held {
 public:
  Held(const Case& the_case, int rank)
      : case_(the_case),
        rank_(rank),
        plan(plan_live_move(the_case.tensors, the_case.options, rank)),
        sources(size()),
        destinations(size()) {
    for (size_t t = 0; t < size(); ++t) {
      const Layout& from = case_.tensors[t].from;
      if (!is_held(from, rank)) continue;
      sources[t] = case_.before.local(from.descriptor(), from.mesh(), rank);
      count(sources[t], 1);
    }
  }

  LiveMove request() {
    LiveMove out;
    out.source = [this](uint32_t t) {
      EXPECT_TRUE(static_cast<bool>(sources[t]));
      return sources[t];
    };
    out.allocate = [this](uint32_t t) { return made(destinations[t], case_.tensors[t].to); };
    out.release = [this](uint32_t t) {
      released.push_back(t);
      free(sources[t]);
    };
    out.restore = [this](uint32_t t) {
      EXPECT_EQ(t, released.back());  // the reversed order
      released.pop_back();
      return made(sources[t], case_.tensors[t].from);
    };
    out.discard = [this](uint32_t t) { free(destinations[t]); };
    return out;
  }

  void expect_moved() const {
    const std::vector<MovedItem> items = moved_items(case_.tensors);
    for (size_t t = 0; t < size(); ++t) {
      const Layout& to = case_.tensors[t].to;
      EXPECT_EQ(static_cast<bool>(sources[t]), items[t].in_place && is_held(to, rank_)) << t;
      EXPECT_EQ(static_cast<bool>(destinations[t]), !items[t].in_place && is_held(to, rank_)) << t;
      if (is_held(to, rank_)) {
        EXPECT_TRUE(same_bytes(items[t].in_place ? sources[t] : destinations[t],
                               case_.after.local(to.descriptor(), to.mesh(), rank_)))
            << "tensor " << t << " on rank " << rank_;
      }
    }
  }
  void expect_unmoved() const {
    EXPECT_TRUE(released.empty());
    for (size_t t = 0; t < size(); ++t) {
      const Layout& from = case_.tensors[t].from;
      EXPECT_EQ(static_cast<bool>(sources[t]), is_held(from, rank_));
      EXPECT_FALSE(static_cast<bool>(destinations[t]));
      if (is_held(from, rank_)) {
        EXPECT_TRUE(same_bytes(sources[t], case_.before.local(from.descriptor(), from.mesh(), rank_)))
            << "tensor " << t << " on rank " << rank_;
      }
    }
  }
  int64_t planned_peak() const {
    const std::vector<int64_t> peak = swap_memory(moved_items(case_.tensors), case_.options.room_bytes);
    EXPECT_EQ(peak, plan.peak_bytes);
    return static_cast<size_t>(rank_) < peak.size() ? peak[static_cast<size_t>(rank_)] : 0;
  }

 private:
  const Case& case_;
  int rank_;
  int64_t bytes_ = 0;

  size_t size() const { return case_.tensors.size(); }
  void count(const Tensor& tensor, int sign) {
    bytes_ += sign * static_cast<int64_t>(tensor.num_bytes());
    peak = std::max(peak, bytes_);
  }
  Tensor made(Tensor& place, const Layout& layout) {
    EXPECT_FALSE(static_cast<bool>(place));
    ++num_made;
    if (num_made == fail_at) throw std::bad_alloc();
    const Shape shape = layout.local_shape(rank_);
    Tensor out = Tensor::empty(std::vector<int64_t>(shape.begin(), shape.end()), layout.descriptor().dtype);
    if (out.num_bytes() > 0) std::memset(out.data(), 0xEE, out.num_bytes());
    place = out;
    count(out, 1);
    return num_made == wrong_at ? out.flat().narrow(0, 0, 0) : out;
  }
  void free(Tensor& place) {
    EXPECT_TRUE(static_cast<bool>(place));
    count(place, -1);
    place.reset();
  }

 public:
  const LiveMovePlan plan;
  std::vector<Tensor> sources, destinations;
  std::vector<uint32_t> released;  // and not restored
  int64_t peak = 0;
  int num_made = 0, fail_at = 0, wrong_at = 0;
};

// The error's text, or "" if there is none.
std::string outcome(const LiveMovePlan& plan, const LiveMove& request, Communicator& communicator,
                    bool* is_remote = nullptr) {
  try {
    live_move(plan, request, communicator);
    return "";
  } catch (const RemoteError& error) {
    if (is_remote != nullptr) *is_remote = true;
    return error.what();
  } catch (const std::exception& error) {
    return error.what();
  }
}

TEST(LiveMove, MovesAnyLayoutToAnyOtherInThePlannedMemory) {
  for (const int num_ranks : {1, 2, 3, 4}) {
    expect_ranks_move(num_ranks, [&](Communicator& communicator) {
      for (uint64_t seed = 0; seed < 25; ++seed) {
        const Case the_case = random_case(seed * 10 + static_cast<uint64_t>(num_ranks), num_ranks);
        SCOPED_TRACE(the_case.text);
        const int rank = communicator.rank();
        Held held(the_case, rank);
        LiveMove request = held.request();
        request.verify = seed % 2 == 0;
        const LiveMoveResult result = live_move(held.plan, request, communicator);
        held.expect_moved();

        EXPECT_EQ(held.peak, held.planned_peak());
        const std::vector<MovedItem> items = moved_items(the_case.tensors);
        const MoveOrder order = order_moves(items);
        if (static_cast<size_t>(rank) < order.peak.size()) {
          EXPECT_LE(held.peak, order.peak[static_cast<size_t>(rank)] + the_case.options.room_bytes);
        }
        EXPECT_LE(std::max(result.sent_bytes, result.received_bytes),
                  result.num_rounds * static_cast<uint64_t>(the_case.options.bucket_bytes));
        if (!request.verify) continue;
        for (uint32_t t = 0; t < items.size(); ++t) {
          const Layout& from = the_case.tensors[t].from;
          uint64_t sum = 0;
          for (int r = 0; r < from.world_size(); ++r)
            if (from.holds(r))
              sum += owned_checksum(from, r, t, the_case.before.local(from.descriptor(), from.mesh(), r), 16);
          EXPECT_EQ(result.checksums[t], items[t].in_place ? 0 : sum);
        }
      }
    });
  }
}

TEST(LiveMove, ReturnsEveryByteIfARankFailsInAnyRound) {
  for (const int num_ranks : {2, 3, 4}) {
    std::atomic<int> num_failures = 0, num_ways_back = 0;
    expect_ranks_move(num_ranks, [&](Communicator& communicator) {
      const int rank = communicator.rank();
      for (uint64_t seed = 0; seed < 6; ++seed) {
        const Case the_case = random_case(1000 + seed * 10 + static_cast<uint64_t>(num_ranks), num_ranks);
        SCOPED_TRACE(the_case.text);
        Held clean(the_case, rank);
        const uint64_t num_rounds = live_move(clean.plan, clean.request(), communicator).num_rounds;
        for (uint32_t round = 0; round < num_rounds; round += 1 + static_cast<uint32_t>(num_rounds / 12))
          for (int failing = 0; failing < num_ranks; ++failing) {
            Held held(the_case, rank);
            LiveMove request = held.request();
            request.verify = round % 2 == 0;
            request.on_round = [&](uint32_t at) {
              EXPECT_LE(at, round);
              if (at == round && rank == failing) throw storage_error("round " + std::to_string(round));
            };
            bool is_remote = false, is_way_back = false;
            request.release = [&, release = request.release](uint32_t t) {
              is_way_back = true;
              release(t);
            };
            const std::string text = outcome(held.plan, request, communicator, &is_remote);
            num_ways_back += is_way_back;
            EXPECT_EQ(is_remote, rank != failing);
            EXPECT_NE(text.find("round " + std::to_string(round)), std::string::npos) << text;
            if (rank != failing) {
              EXPECT_EQ(text.find("rank " + std::to_string(failing) + ": "), 0u) << text;
            }
            held.expect_unmoved();
            EXPECT_LE(held.peak, held.planned_peak());
            num_failures += rank == 0;
          }
      }
    });
    EXPECT_GT(num_failures, 20);
    EXPECT_GT(num_ways_back, 20);
  }
}

TEST(LiveMove, ReturnsEveryByteIfAnAllocationFailsOrGivesAWrongTensor) {
  for (const int num_ranks : {2, 3}) {
    expect_ranks_move(num_ranks, [&](Communicator& communicator) {
      const int rank = communicator.rank();
      for (uint64_t seed = 0; seed < 6; ++seed) {
        const Case the_case = random_case(2000 + seed * 10 + static_cast<uint64_t>(num_ranks), num_ranks);
        SCOPED_TRACE(the_case.text);
        for (int failing = 0; failing < num_ranks; ++failing)
          for (int at = 1; at <= static_cast<int>(the_case.tensors.size()); ++at) {
            Held held(the_case, rank);
            if (rank == failing) (at % 2 == 0 ? held.fail_at : held.wrong_at) = at;
            bool is_remote = false;
            const std::string text = outcome(held.plan, held.request(), communicator, &is_remote);
            if (text.empty()) {  // the rank has fewer destinations
              held.expect_moved();
              continue;
            }
            EXPECT_EQ(is_remote, rank != failing);
            held.expect_unmoved();
          }
      }
    });
  }
}

// Rows of the one layout are columns of the other, so that every rank sends.
Case rows_to_columns(int num_tensors) {
  Case out;
  const MeshShape mesh = mesh_of(2, 1);
  for (int i = 0; i < num_tensors; ++i) {
    Descriptor rows = Descriptor::plain("w", Dtype::f32, {16, 16}), columns = rows;
    rows.placements = {Placement::dim_chunk({"dp"}, 0)};
    columns.placements = {Placement::dim_chunk({"dp"}, 1)};
    out.add(rows, mesh, columns, mesh);
  }
  out.options.bucket_bytes = 128;
  return out;
}

TEST(LiveMove, SaysThatStateIsLostIfTheWayBackFailsToo) {
  const Case the_case = rows_to_columns(3);
  expect_ranks_move(2, [&](Communicator& communicator) {
    Held held(the_case, communicator.rank());
    LiveMove request = held.request();
    request.allocate = [&, allocate = request.allocate](uint32_t t) {
      if (communicator.rank() == 1 && held.num_made == 2) throw storage_error("the first failure");
      return allocate(t);
    };
    request.restore = [&, restore = request.restore](uint32_t t) {
      if (communicator.rank() == 0) throw storage_error("the second failure");
      return restore(t);
    };
    try {
      live_move(held.plan, request, communicator);
      ADD_FAILURE() << "no error on rank " << communicator.rank();
    } catch (const StateLost& error) {
      EXPECT_NE(std::string(error.what()).find("the first failure"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("the second failure"), std::string::npos) << error.what();
    }
  });
}

TEST(LiveMove, NoticesAFlippedByteIfItVerifies) {
  const Case the_case = rows_to_columns(3);
  for (const bool verify : {true, false})
    for (const uint32_t tensor : {0, 2}) {
      expect_ranks_move(2, [&](Communicator& communicator) {
        const int rank = communicator.rank();
        Held held(the_case, rank);
        LiveMove request = held.request();
        request.verify = verify;
        bool is_flipped = false;
        request.on_round = [&](uint32_t) {
          // A tensor needs several rounds. Its first row is copied within rank 0, in the first of them.
          const Tensor& local = held.destinations[tensor];
          if (rank != 0 || is_flipped || !local || local.data_as<unsigned char>()[0] == 0xEE) return;
          local.data_as<unsigned char>()[0] ^= 1;
          is_flipped = true;
        };
        const std::string text = outcome(held.plan, request, communicator);
        EXPECT_EQ(is_flipped, rank == 0);
        if (verify) {
          EXPECT_NE(text.find("tensor 't" + std::to_string(tensor) + "' has a different checksum"), std::string::npos)
              << text;
          held.expect_unmoved();
        } else {
          EXPECT_EQ(text, "");
        }
      });
    }
}

TEST(LiveMovePlan, RefusesToCast) {
  std::vector<ReshardTensor> tensors = rows_to_columns(2).tensors;
  Descriptor d = tensors[1].to.descriptor();
  d.dtype = Dtype::bf16;
  tensors[1].to = Layout(d, mesh_of(2, 1));
  EXPECT_NE(error_of([&] { plan_live_move(tensors, {}, 0); }).find("tensor 't1' is bf16, its source f32"),
            std::string::npos);
}

// The buffers of one rank cannot be made, before anything has moved.
TEST(LiveMove, FailsOnAllRanksIfBuffersCannotBeMade) {
  const Case the_case = rows_to_columns(2);
  expect_ranks_move(2, [&](Communicator& communicator) {
    Held held(the_case, communicator.rank());
    LiveMovePlan plan = plan_live_move(the_case.tensors, the_case.options, communicator.rank());
    if (communicator.rank() == 1) plan.options.bucket_bytes = int64_t{1} << 60;
    EXPECT_NE(outcome(plan, held.request(), communicator), "");
    held.expect_unmoved();
    EXPECT_EQ(held.num_made, 0);
  });
}

TEST(OwnedChecksum, ChangesWithAnyByte) {
  const Case the_case = random_case(5, 3);
  ASSERT_GT(the_case.tensors.size(), 2u) << the_case.text;
  for (uint32_t t = 0; t < the_case.tensors.size(); ++t) {
    const Layout& layout = the_case.tensors[t].from;
    for (int rank = 0; rank < layout.world_size(); ++rank) {
      if (!layout.holds(rank)) continue;
      const Tensor local = the_case.before.local(layout.descriptor(), layout.mesh(), rank);
      const uint64_t sum = owned_checksum(layout, rank, t, local);
      uint64_t num_changes = 0, num_owned = 0;
      for (uint64_t k = 0; k < local.num_bytes(); ++k) {
        local.data_as<unsigned char>()[k] ^= 16;
        num_changes += owned_checksum(layout, rank, t, local) != sum;
        local.data_as<unsigned char>()[k] ^= 16;
      }
      for (const Box& box : layout.owned_boxes(rank)) num_owned += static_cast<uint64_t>(numel(box));
      EXPECT_EQ(num_changes, num_owned * static_cast<uint64_t>(size_bytes(layout.descriptor().dtype)));
    }
  }
}

}  // namespace
}  // namespace chassis
