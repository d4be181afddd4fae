// Packing, accumulation, recompute and a second run do not change results.
#include "tests/regress/small_run.hpp"

namespace chassis::test {
namespace {

class Invariance : public WithProviders {};
INSTANTIATE_TEST_SUITE_P(, Invariance, WithProviders::all());

constexpr double kTolerance = 1e-5;

// Documents that fill rows of 32 exactly, so that a step sees the same documents with and without packing.
const std::vector<size_t> kWholeRows = {20, 12, 8, 24, 5, 16, 11, 32, 3, 29, 31, 1, 13, 7, 12, 32};
constexpr const char* kRows = "train.global_batch_size=4";
constexpr const char* kDocuments = "train.global_batch_size=8";

TEST_P(Invariance, PackedDocumentsTrainLikeUnpackedOnes) {
  const SmallRun run(GetParam());
  run.write(random_documents(kWholeRows));
  // The first four rows hold eight documents, and so do the last four.
  const Trained packed =
      train(run, 6, {"data.shuffle=false", "data.packing=concat_split", kRows, "train.micro_batch_size=2"});
  const Trained alone =
      train(run, 6, {"data.shuffle=false", "data.packing=none", kDocuments, "train.micro_batch_size=4"});
  expect_close(packed, alone, kTolerance);
}

TEST_P(Invariance, AccumulationTrainsLikeOneLargeBatch) {
  const SmallRun run(GetParam());
  run.write(random_documents({9, 40, 3, 77, 21, 14, 35, 2, 60, 18}));
  for (const std::vector<std::string>& packing :
       {std::vector<std::string>{"data.packing=concat_split"}, {"data.packing=none", "data.overflow=truncate"}}) {
    auto with = [&](const char* micro_batch) {
      auto overrides = packing;
      overrides.insert(overrides.end(), {"train.global_batch_size=8", micro_batch});
      return train(run, 5, overrides);
    };
    const Trained whole = with("train.micro_batch_size=8");
    expect_close(with("train.micro_batch_size=2"), whole, kTolerance);
    expect_close(with("train.micro_batch_size=1"), whole, kTolerance);
  }
}

TEST_P(Invariance, RecomputeChangesNoBit) {
  const SmallRun run(GetParam());
  run.write(random_documents({9, 40, 3, 77, 21, 14, 35, 2, 60, 18}));
  const std::vector<std::string> overrides = {"train.micro_batch_size=2", "train.global_batch_size=4"};
  const Trained kept = train(run, 4, overrides, Recompute::kNone);
  for (const Recompute& recompute : {Recompute::kFull, Recompute::kSelective, Recompute{1, 1}})
    expect_same_bits(train(run, 4, overrides, recompute), kept);
}

TEST_P(Invariance, TheSameSeedGivesTheSameBits) {
  const SmallRun run(GetParam());
  run.write(random_documents({9, 40, 3, 77, 21, 14, 35, 2, 60, 18}));
  const std::vector<std::string> overrides = {"train.micro_batch_size=2", "train.global_batch_size=4"};
  const Trained first = train(run, 4, overrides);
  expect_same_bits(train(run, 4, overrides), first);
  auto other = overrides;
  other.push_back("run.seed=6");
  EXPECT_NE(train(run, 4, other).losses, first.losses);
}

}  // namespace
}  // namespace chassis::test
