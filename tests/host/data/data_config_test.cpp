#include "host/data/data_config.hpp"

#include <gtest/gtest.h>

#include "tests/host/data/support.hpp"

namespace chassis {
namespace {

TEST(DataConfig, RefusesUnknownFormats) {
  EXPECT_EQ(data_format_from_text("sharegpt"), DataFormat::kShareGpt);
  EXPECT_EQ(
      error_of([] { data_format_from_text("csv"); }),
      "format \"csv\" is not one of \"text\", \"alpaca\", \"sharegpt\", \"messages\", \"prompt_completion\", "
      "\"segments\", \"tokens\", \"preference\", \"labelled\", \"classification\", \"rollouts\", \"distillation\"");
}

}  // namespace
}  // namespace chassis
