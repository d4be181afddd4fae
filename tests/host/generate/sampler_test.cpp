// The distributions from which tokens are drawn, compared with ones computed by hand.
#include "host/generate/sampler.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "host/base/error.hpp"

namespace chassis {
namespace {

using Distribution = std::map<int32_t, double>;  // by token; has only tokens that can be drawn

const std::vector<float> kLogits = {0.0f, 3.0f, 1.0f, 2.0f};
// Softmax of kLogits: 0.0321 for token 0, 0.6439 for 1, 0.0871 for 2, 0.2369 for 3.

Distribution distribution(const std::vector<float>& logits, const SamplingOptions& options,
                          const std::vector<int32_t>& seen = {}) {
  double sum = 0.0;
  const std::vector<TokenWeight> all = token_weights(logits, options, seen);
  for (const TokenWeight& one : all) sum += one.weight;
  Distribution made;
  for (const TokenWeight& one : all) made[one.id] = one.weight / sum;
  return made;
}

void expect(const Distribution& made, const Distribution& expected, double tolerance = 5e-5) {
  EXPECT_EQ(made.size(), expected.size());
  for (const auto& [id, probability] : expected) {
    EXPECT_TRUE(made.contains(id)) << id;
    if (made.contains(id)) {
      EXPECT_NEAR(made.at(id), probability, tolerance) << id;
    }
  }
}

int32_t greedy(const std::vector<float>& logits, const std::vector<int32_t>& seen = {}, double penalty = 1.0) {
  return choose_token(logits, {.repetition_penalty = penalty}, seen, 0.9);
}

TEST(Sampler, TemperatureZeroTakesTheMostLikely) {
  for (double draw : {0.0, 0.5, 0.999}) EXPECT_EQ(choose_token(kLogits, {}, {}, draw), 1);
  EXPECT_EQ(greedy({2.0f, 2.0f}), 0) << "the first of equals";
}

TEST(Sampler, TemperatureDividesTheLogits) {
  expect(distribution(kLogits, {.temperature = 1.0}), {{0, 0.0321}, {1, 0.6439}, {2, 0.0871}, {3, 0.2369}});
  // e^0, e^6, e^2, e^4 ÷ 466.4159
  expect(distribution(kLogits, {.temperature = 0.5}), {{0, 0.00214}, {1, 0.86495}, {2, 0.01584}, {3, 0.11706}});
}

TEST(Sampler, TopKKeepsTheMostLikelyAndTheirEquals) {
  expect(distribution(kLogits, {.temperature = 1.0, .top_k = 2}), {{1, 0.73106}, {3, 0.26894}});
  expect(distribution(kLogits, {.temperature = 1.0, .top_k = 1}), {{1, 1.0}});
  EXPECT_EQ(distribution(kLogits, {.temperature = 1.0, .top_k = 9}).size(), 4u) << "more than there are";
  expect(distribution({1.0f, 2.0f, 1.0f, 0.0f}, {.temperature = 1.0, .top_k = 2}),
         {{0, 0.21194}, {1, 0.57612}, {2, 0.21194}});
}

TEST(Sampler, TopPKeepsTheSmallestSetWithThatProbability) {
  expect(distribution(kLogits, {.temperature = 1.0, .top_p = 0.6}), {{1, 1.0}});
  expect(distribution(kLogits, {.temperature = 1.0, .top_p = 0.65}), {{1, 0.73106}, {3, 0.26894}});
  expect(distribution(kLogits, {.temperature = 1.0, .top_p = 0.0}), {{1, 1.0}});
  EXPECT_EQ(distribution(kLogits, {.temperature = 1.0, .top_p = 1.0}).size(), 4u);
}

TEST(Sampler, TokensThatRoundingExchangesKeepTheirPlace) {
  const SamplingOptions options = {.temperature = 1.0, .top_p = 0.95};
  const std::vector<float> logits = {1.0f, 2.0f, 2.000001f, 3.0f}, rounded = {1.0f, 2.000001f, 2.0f, 3.0f};
  for (double draw = 0.005; draw < 1.0; draw += 0.01)
    EXPECT_EQ(choose_token(logits, options, {}, draw), choose_token(rounded, options, {}, draw)) << draw;
}

TEST(Sampler, MinPIsAFractionOfTheLargestProbability) {
  expect(distribution(kLogits, {.temperature = 1.0, .min_p = 0.3}), {{1, 0.73106}, {3, 0.26894}});  // e^-1 = 0.368
  expect(distribution(kLogits, {.temperature = 1.0, .min_p = 0.4}), {{1, 1.0}});
  EXPECT_EQ(distribution(kLogits, {.temperature = 1.0, .min_p = 0.04}).size(), 4u) << "e^-3 = 0.0498";
}

// Each setting looks at what the ones before it have left: top_p 0.7 of all tokens would keep two, but token 1 alone
// has 0.73 of these two. The temperature comes first.
TEST(Sampler, SettingsApplyInTheOrderOfTransformers) {
  expect(distribution(kLogits, {.temperature = 1.0, .top_p = 0.7}), {{1, 0.73106}, {3, 0.26894}});
  expect(distribution(kLogits, {.temperature = 1.0, .top_k = 2, .top_p = 0.7}), {{1, 1.0}});
  expect(distribution(kLogits, {.temperature = 2.0, .min_p = 0.3}),
         {{1, 0.50648}, {3, 0.30720}, {2, 0.18632}});  // e^-1 = 0.368 for token 2 at this temperature
}

// (0, 3, 1, 2) becomes (0, 1.5, 1, 1): tokens 1 and 3 occurred, and the second occurrence of token 3 changes nothing.
TEST(Sampler, RepetitionPenaltyDividesPositiveAndMultipliesNegativeLogits) {
  expect(distribution(kLogits, {.temperature = 1.0, .repetition_penalty = 2.0}, {3, 1, 3}),
         {{0, 0.09159}, {1, 0.41048}, {2, 0.24897}, {3, 0.24897}});
  EXPECT_EQ(greedy({2.0f, 1.5f}, {0}, 2.0), 1) << "2 ÷ 2 is less than 1.5";
  EXPECT_EQ(greedy({-1.0f, -1.5f}, {0}, 2.0), 1) << "-1 · 2 is less than -1.5";
  EXPECT_EQ(greedy({2.0f, 1.5f}, {0}, 1.2), 0);
  EXPECT_EQ(greedy({2.0f, 1.5f}, {0, 7}, 2.0), 1) << "an id beyond the vocabulary is in the prompt";
}

TEST(Sampler, DrawsInProportion) {
  const SamplingOptions options{.temperature = 1.0, .top_k = 3, .top_p = 0.97, .min_p = 0.01};
  const Distribution expected = distribution(kLogits, options);
  Distribution shares;
  for (int i = 0; i < 10000; ++i) shares[choose_token(kLogits, options, {}, i / 10000.0)] += 1e-4;
  expect(shares, expected, 3e-4);
}

TEST(Sampler, EveryDrawIsAToken) {
  EXPECT_EQ(choose_token(kLogits, {.temperature = 1.0}, {}, 0.0), 0);
  EXPECT_EQ(choose_token(kLogits, {.temperature = 1.0}, {}, std::nextafter(1.0, 0.0)), 3);
  EXPECT_EQ(choose_token({-INFINITY, 1.0f, -INFINITY}, {.temperature = 1.0}, {}, 0.99), 1);
}

TEST(Sampler, LogitsThatAreNotFiniteAreANumericError) {
  for (const std::vector<float>& logits :
       {std::vector<float>{NAN, 1.0f}, std::vector<float>{1.0f, NAN}, std::vector<float>{1.0f, INFINITY},
        std::vector<float>{-INFINITY, -INFINITY}}) {
    try {
      choose_token(logits, {.temperature = 1.0}, {}, 0.5);
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kNumeric);
    }
  }
}

TEST(Sampler, MasksIdsBeyondTheVocabulary) {
  std::vector<float> logits = kLogits;
  EXPECT_FALSE(mask_padded_ids(logits, 0));
  EXPECT_FALSE(mask_padded_ids(logits, 4));
  EXPECT_FALSE(mask_padded_ids(logits, 2)) << "id 1 was the most likely";
  EXPECT_EQ(logits, (std::vector<float>{0.0f, 3.0f}));
  EXPECT_TRUE(mask_padded_ids(logits, 1));
  EXPECT_EQ(logits, std::vector<float>{0.0f});
}

}  // namespace
}  // namespace chassis
