// The key-value cache changes how logits are computed, not what they are.
#include <numeric>

#include "host/generate/generate.hpp"
#include "tests/regress/small_run.hpp"

namespace chassis::test {
namespace {

class Generation : public WithProviders {
 protected:
  Generation() : run_(GetParam()), session_(run_.open({})) {}

  Tensor logits(const std::vector<int32_t>& ids, size_t begin, size_t end, KeyValueCache* cache) {
    const int64_t sizes[] = {1, static_cast<int64_t>(end - begin)};
    std::vector<int32_t> positions(end - begin);
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(begin));
    const Fields fields = {
        {"input_ids", Tensor::borrow(const_cast<int32_t*>(ids.data()) + begin, sizes, Dtype::i32).clone()},
        {"positions", Tensor::borrow(positions.data(), sizes, Dtype::i32).clone()}};
    return session_->executor().logits(fields, cache ? KeyValueCaches(&cache, 1) : KeyValueCaches(), false);
  }

  // Texts that differ in all that a text can have.
  static std::vector<TextRequest> requests() {
    std::vector<TextRequest> all;
    const std::vector<int32_t> ids = random_documents({60})[0].ids;
    for (size_t i = 0; i < 11; ++i) {
      TextRequest request;
      request.prompt.assign(ids.begin() + static_cast<ptrdiff_t>(i), ids.begin() + static_cast<ptrdiff_t>(2 * i + 1));
      request.options.max_new_tokens = i == 4 ? 0 : i == 2 ? 150 : static_cast<int64_t>(25 - 2 * i);
      request.options.stream = "text " + std::to_string(i);
      request.options.use_cache = i != 7;
      if (i % 3 == 1) request.options.sampling = {.temperature = 1.0, .top_k = 40, .repetition_penalty = 1.2};
      all.push_back(std::move(request));
    }
    return all;
  }

  std::vector<int32_t> generate_from(const std::vector<int32_t>& prompt, GenerateOptions options, bool use_cache) {
    options.use_cache = use_cache;
    return generate(session_->executor(), prompt, options, session_->device(), {}).ids;
  }

  SmallRun run_;
  std::unique_ptr<Session> session_;
};
INSTANTIATE_TEST_SUITE_P(, Generation, WithProviders::all());

TEST_P(Generation, LogitsAreTheSameWithAndWithoutTheCache) {
  const std::vector<int32_t> ids = random_documents({29})[0].ids;
  const std::vector<float> whole = floats_of(logits(ids, 0, ids.size(), nullptr));
  // A prompt of 11, then pieces of several tokens and of one.
  KeyValueCache cache(static_cast<int64_t>(ids.size()));
  std::vector<float> pieces;
  size_t begin = 0;
  for (size_t end : {11, 12, 13, 17, 18, 19, 20, 26, 27, 28, 29}) {
    const std::vector<float> piece = floats_of(logits(ids, begin, end, &cache));
    pieces.insert(pieces.end(), piece.begin(), piece.end());
    begin = end;
  }
  ASSERT_EQ(pieces.size(), whole.size());
  float largest = 0.0f;
  for (size_t i = 0; i < whole.size(); ++i) largest = std::max(largest, std::abs(pieces[i] - whole[i]));
  EXPECT_LE(largest, 1e-5f);
}

TEST_P(Generation, TokensAreTheSameWithAndWithoutTheCache) {
  for (const std::vector<int32_t>& prompt : {std::vector<int32_t>{5}, std::vector<int32_t>{1, 2, 3, 4, 100, 99}}) {
    GenerateOptions greedy;
    greedy.max_new_tokens = 40;
    const auto expected = generate_from(prompt, greedy, false);
    EXPECT_EQ(expected.size(), 40u);
    EXPECT_EQ(generate_from(prompt, greedy, true), expected);
    GenerateOptions sampled = greedy;
    sampled.sampling.temperature = 1.0;
    sampled.sampling.top_p = 0.95;
    sampled.sampling.top_k = 60;
    sampled.sampling.repetition_penalty = 1.1;
    sampled.seed = 3;
    const auto drawn = generate_from(prompt, sampled, false);
    EXPECT_EQ(generate_from(prompt, sampled, true), drawn);
    EXPECT_NE(drawn, expected);
    sampled.seed = 4;
    EXPECT_NE(generate_from(prompt, sampled, true), drawn);
    sampled.seed = 3;
    sampled.stream = "another";
    EXPECT_NE(generate_from(prompt, sampled, true), drawn);
  }
}

// Such ids exist if the vocabulary of the model is padded to a round number.
TEST_P(Generation, IdsAboveTheTokenizersVocabularyAreCountedAndNeverChosen) {
  GenerateOptions options;
  options.max_new_tokens = 40;
  const Generated all = generate(session_->executor(), {5}, options, session_->device(), {});
  EXPECT_EQ(all.num_masked, 0u);
  options.vocab_size = *std::max_element(all.ids.begin(), all.ids.end());
  const Generated some = generate(session_->executor(), {5}, options, session_->device(), {});
  EXPECT_GT(some.num_masked, 0u);
  EXPECT_EQ(some.ids.size(), 40u);
  for (int32_t id : some.ids) EXPECT_LT(id, options.vocab_size);
}

TEST_P(Generation, EndsAtAnyOfTheStopIdsOrWhenTheCallerSaysSo) {
  GenerateOptions options;
  options.max_new_tokens = 20;
  const Generated all = generate(session_->executor(), {5}, options, session_->device(), {});
  EXPECT_EQ(all.finish, Finish::kLength);
  const int32_t stop = all.ids.back();
  const auto first = static_cast<size_t>(std::find(all.ids.begin(), all.ids.end(), stop) - all.ids.begin());
  options.stop_ids = {1 << 20, stop};
  const Generated stopped = generate(session_->executor(), {5}, options, session_->device(), {});
  EXPECT_EQ(stopped.finish, Finish::kStopId);
  EXPECT_EQ(stopped.ids, std::vector<int32_t>(all.ids.begin(), all.ids.begin() + static_cast<ptrdiff_t>(first)));
  options.stop_ids = {};
  int calls = 0;
  const auto until_three = [&](int32_t) { return ++calls < 3; };
  const Generated ended = generate(session_->executor(), {5}, options, session_->device(), until_three);
  EXPECT_EQ(ended.finish, Finish::kStoppedByCaller);
  EXPECT_EQ(ended.ids.size(), 3u);
}

TEST_P(Generation, TextsOfABatchHaveTheTokensThatTheyHaveAlone) {
  std::vector<std::vector<int32_t>> alone;
  for (const TextRequest& request : requests())
    alone.push_back(generate(session_->executor(), request.prompt, request.options, session_->device(), {}).ids);
  for (const size_t size : {2, 5, 16}) {
    std::vector<std::vector<int32_t>> together(alone.size());
    size_t next = 0, largest = 0;
    TextBatch batch;
    const auto join = [&] {
      for (; next < alone.size() && batch.num_texts() < size; ++next) {
        TextRequest request = requests()[next];
        request.on_end = [&, row = next](Generated made) { together[row] = std::move(made.ids); };
        batch.add(std::move(request));
      }
      largest = std::max(largest, batch.num_texts());
    };
    for (join(); batch.num_texts() > 0; join()) batch.step(session_->executor(), session_->device());
    EXPECT_EQ(together, alone) << size << " at once";
    EXPECT_EQ(largest, std::min(size, alone.size()));
  }
}

TEST_P(Generation, ALongPromptIsComputedInPartsWhileOtherTextsGoOn) {
  const std::vector<int32_t> ids = random_documents({1100})[0].ids;
  GenerateOptions options;
  options.max_new_tokens = 3;
  const std::vector<int32_t> expected = generate_from(ids, options, false);
  Generated made;
  TextBatch batch;
  int num_long = 0, num_short = 0;
  batch.add({.prompt = ids,
             .options = options,
             .on_token = [&](int32_t) { return ++num_long > 0; },
             .on_end = [&](Generated text) { made = std::move(text); }});
  batch.add({.prompt = {5}, .options = options, .on_token = [&](int32_t) { return ++num_short > 0; }});
  batch.step(session_->executor(), session_->device());
  EXPECT_EQ(num_long, 0);
  EXPECT_EQ(num_short, 1);
  while (batch.num_texts() > 0) batch.step(session_->executor(), session_->device());
  EXPECT_EQ(made.ids, expected);
  EXPECT_EQ(num_long, 3);
}

TEST_P(Generation, ATextOfABatchEndsByItselfAndLeavesTheOthers) {
  std::vector<TextRequest> all = requests();
  const std::vector<int32_t> other =
      generate(session_->executor(), all[0].prompt, all[0].options, session_->device(), {}).ids;
  TextBatch batch;
  Generated first, second;
  all[0].on_end = [&](Generated made) { first = std::move(made); };
  all[1].on_token = [](int32_t) { return false; };
  all[1].on_end = [&](Generated made) { second = std::move(made); };
  batch.add(std::move(all[0]));
  batch.add(std::move(all[1]));
  batch.step(session_->executor(), session_->device());
  EXPECT_EQ(batch.num_texts(), 1u);
  EXPECT_EQ(second.finish, Finish::kStoppedByCaller);
  EXPECT_EQ(second.ids.size(), 1u);
  EXPECT_THROW(batch.add({}), Error);
  while (batch.num_texts() > 0) batch.step(session_->executor(), session_->device());
  EXPECT_EQ(first.ids, other);
}

// Rows as in a conversation: each begins with a part of the one before.
TEST_P(Generation, ACachedRowGivesTheTokensOfAWholePrefill) {
  const std::vector<int32_t> ids = random_documents({40})[0].ids;
  GenerateOptions options;
  options.max_new_tokens = 9;
  CachedRow cached;
  std::vector<int32_t> prompt(ids.begin(), ids.begin() + 5);
  for (int turn = 0; turn < 4; ++turn) {
    const Generated fresh = generate(session_->executor(), prompt, options, session_->device(), {});
    const Generated again = generate(session_->executor(), prompt, options, session_->device(), {}, &cached);
    EXPECT_EQ(again.ids, fresh.ids) << "turn " << turn;
    if (turn == 1)
      prompt.resize(3);  // the template has rewritten the last turn
    else
      prompt.insert(prompt.end(), fresh.ids.begin(), fresh.ids.end() - 2);
    prompt.insert(prompt.end(), ids.begin() + 5 + turn, ids.begin() + 10 + turn);
  }
}

}  // namespace
}  // namespace chassis::test
