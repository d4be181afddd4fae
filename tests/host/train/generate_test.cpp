// The choice of the next token from logits.
#include "host/train/generate.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "host/base/error.hpp"

namespace chassis {
namespace {

const std::vector<float> kLogits = {0.0f, 3.0f, 1.0f, 2.0f};

std::vector<double> shares(double temperature, double top_p) {
  std::vector<double> counts(kLogits.size());
  for (int i = 0; i < 10000; ++i)
    counts[static_cast<size_t>(choose_token(kLogits, temperature, top_p, i / 10000.0))] += 1e-4;
  return counts;
}

TEST(ChooseToken, TemperatureZeroTakesTheMostLikely) {
  for (double draw : {0.0, 0.5, 0.999}) EXPECT_EQ(choose_token(kLogits, 0.0, 1.0, draw), 1);
  EXPECT_EQ(choose_token({2.0f, 2.0f}, 0.0, 1.0, 0.9), 0) << "the first of equals";
}

TEST(ChooseToken, DrawsFromTheSoftmax) {
  for (double temperature : {0.5, 1.0, 2.0}) {
    double sum = 0.0;
    for (float x : kLogits) sum += std::exp(static_cast<double>(x) / temperature);
    const auto got = shares(temperature, 1.0);
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], std::exp(static_cast<double>(kLogits[i]) / temperature) / sum, 3e-4) << temperature;
  }
}

TEST(ChooseToken, TopPKeepsTheSmallestSetWithThatProbability) {
  EXPECT_EQ(shares(1.0, 0.6), (shares(1.0, 1e-9))) << "0.64 of token 1 is enough";
  EXPECT_NEAR(shares(1.0, 0.6)[1], 1.0, 1e-9);
  const auto two = shares(1.0, 0.8);
  EXPECT_NEAR(two[1], 1.0 / (1.0 + std::exp(-1.0)), 3e-4);
  EXPECT_EQ(two[0] + two[2], 0.0);
  EXPECT_GT(shares(1.0, 1.0)[0], 0.0);
}

TEST(ChooseToken, EveryDrawIsAToken) {
  EXPECT_EQ(choose_token(kLogits, 1.0, 1.0, 0.0), 1);
  EXPECT_EQ(choose_token(kLogits, 1.0, 1.0, std::nextafter(1.0, 0.0)), 0) << "the least likely";
  EXPECT_EQ(choose_token({-INFINITY, 1.0f, -INFINITY}, 1.0, 1.0, 0.99), 1);
}

TEST(ChooseToken, LogitsThatAreNotFiniteAreANumericError) {
  for (const std::vector<float>& logits :
       {std::vector<float>{NAN, 1.0f}, std::vector<float>{1.0f, NAN}, std::vector<float>{1.0f, INFINITY},
        std::vector<float>{-INFINITY, -INFINITY}}) {
    try {
      choose_token(logits, 1.0, 1.0, 0.5);
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kNumeric);
    }
  }
}

TEST(Generate, MasksIdsBeyondTheVocabulary) {
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
