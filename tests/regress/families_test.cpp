// Packing, recompute and the key-value cache change no results of any family, and bf16 no more than its rounding does.
#include <algorithm>

#include "host/generate/generate.hpp"
#include "tests/regress/small_families.hpp"
#include "tests/regress/small_run.hpp"

namespace chassis::test {
namespace {

class FamilyRuns : public testing::TestWithParam<SmallFamily> {
 protected:
  static std::vector<Providers> providers() {
    return {{"interval", with_experts("[\"fused\", \"aten\"]", GetParam())}, {"naive", "[\"reference\"]"}};
  }
};
INSTANTIATE_TEST_SUITE_P(, FamilyRuns, testing::ValuesIn(small_families()),
                         [](const auto& info) { return info.param.name; });

TEST_P(FamilyRuns, PackedDocumentsTrainLikeUnpackedOnes) {
  // LongRoPE depends on the longest document of a micro-batch, so all of them are short or all are long.
  const std::vector<size_t> lengths = {16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16};
  for (const Providers& with : providers()) {
    const SmallRun run(with, GetParam().model);
    run.write(random_documents(lengths));
    const Trained packed = train(
        run, 4,
        {"data.shuffle=false", "data.packing=concat_split", "train.global_batch_size=4", "train.micro_batch_size=2"});
    const Trained alone = train(
        run, 4, {"data.shuffle=false", "data.packing=none", "train.global_batch_size=8", "train.micro_batch_size=4"});
    expect_close(packed, alone, 1e-5);
  }
}

TEST_P(FamilyRuns, RecomputeChangesNoBit) {
  for (const Providers& with : providers()) {
    const SmallRun run(with, GetParam().model);
    run.write(random_documents({9, 40, 3, 77, 21, 14, 35, 2, 60, 18}));
    const std::vector<std::string> overrides = {"train.micro_batch_size=2", "train.global_batch_size=4"};
    const Trained kept = train(run, 3, overrides, Recompute::kNone);
    for (const Recompute& recompute : {Recompute::kFull, Recompute::kSelective, Recompute{1, 1}})
      expect_same_bits(train(run, 3, overrides, recompute), kept);
  }
}

TEST_P(FamilyRuns, TokensAreTheSameWithAndWithoutTheCache) {
  for (const Providers& with : providers()) {
    const SmallRun run(with, GetParam().model);
    const auto session = run.open({});
    GenerateOptions options;
    options.max_new_tokens = 17;  // beyond the windows, and to where the long frequencies of phi3 begin
    CachedRow row;
    const auto ids_of = [&](const std::vector<int32_t>& prompt, CachedRow* kept) {
      return generate(session->executor(), prompt, options, session->device(), {}, kept).ids;
    };
    const auto cached = ids_of({1, 2, 3, 100, 99}, &row);
    const auto shorter = ids_of({1, 2, 3, 100}, &row);
    options.use_cache = false;
    EXPECT_EQ(ids_of({1, 2, 3, 100, 99}, nullptr), cached);
    EXPECT_EQ(ids_of({1, 2, 3, 100}, nullptr), shorter);
    EXPECT_EQ(cached.size(), 17u);
  }
}

TEST(Latents, AreCachedUnlessFullCacheAsksForKeysAndValues) {
  const auto families = small_families();
  const auto family = std::ranges::find(families, std::string("deepseek_v2"), &SmallFamily::name);
  ASSERT_NE(family, families.end());
  const SmallRun run({"interval", with_experts("[\"fused\", \"aten\"]", *family)}, family->model);
  const std::vector<std::vector<int32_t>> prompts = {{1, 2, 3, 100, 99}, {7}, {1, 2, 3, 100}};
  std::vector<std::vector<int32_t>> narrow, full;
  // Three layers; a latent of 12 and a rotated part of 4, or four heads with keys of 10 and values of 8.
  const auto generate_all = [&](const std::vector<std::string>& overrides, uint64_t numbers, auto& made) {
    const auto session = run.open(overrides);
    made.resize(prompts.size());
    std::vector<CachedRow> rows(prompts.size());
    TextBatch texts;
    for (size_t i = 0; i < prompts.size(); ++i) {
      GenerateOptions options;
      options.max_new_tokens = static_cast<int64_t>(17 + i);  // so they leave one after another
      texts.add({.prompt = prompts[i],
                 .options = options,
                 .on_end = [&made, i](Generated text) { made[i] = std::move(text.ids); },
                 .cached = &rows[i]});
    }
    while (texts.num_texts() > 0) texts.step(session->executor(), session->device());
    for (CachedRow& row : rows) EXPECT_EQ(row.cache().bytes_per_position(), 3 * numbers * sizeof(float));
  };
  generate_all({"generate.full_cache=false"}, 12 + 4, narrow);
  generate_all({}, 4 * (10 + 8), full);  // the default on the CPU
  EXPECT_EQ(narrow, full);
}

TEST_P(FamilyRuns, Bf16StaysWithinItsRoundingErrors) {
  const SmallRun run({"sdpa", with_experts("[\"aten\", \"naive\"]", GetParam())},
                     GetParam().model);  // naive caps scores in bf16
  run.write(random_documents({9, 40, 3, 77, 21, 14, 35, 2, 60, 18}));
  const std::vector<std::string> overrides = {"train.micro_batch_size=2", "train.global_batch_size=4"};
  auto half = overrides;
  half.push_back("precision.compute=bf16");
  expect_within_bf16(train(run, 8, half), train(run, 8, overrides), GetParam().has_experts() ? 4 : 1);
}

TEST_P(FamilyRuns, ProvidersAgree) {
  std::vector<Trained> trained;
  for (const Providers& with : providers()) {
    const SmallRun run(with, GetParam().model);
    run.write(random_documents({9, 40, 3, 77, 21, 14, 35, 2, 60, 18}));
    trained.push_back(train(run, 4, {"train.micro_batch_size=2", "train.global_batch_size=4"}));
  }
  expect_close(trained[0], trained[1], 1e-4);
}

}  // namespace
}  // namespace chassis::test
