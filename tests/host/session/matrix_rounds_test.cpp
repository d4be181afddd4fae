// How matrices that a tensor axis divides are dealt to the ranks that step them.
#include "host/session/matrix_rounds.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace chassis {
namespace {

class MatrixRoundsTest : public testing::Test {
 protected:
  Parameter& add(const std::string& name, const Shape& shape, bool divided = true) {
    Parameter& p = *owned_.emplace_back(std::make_unique<Parameter>());
    p.name = name;
    p.descriptor = Descriptor::plain(name, Dtype::f32, shape);
    p.granularity = Granularity::matrix();
    if (divided) {
      p.descriptor.placements.push_back(Placement::dim_chunk({"tp"}, 0));
      p.num_layout_placements = 1;
    }
    trained_.push_back(&p);
    return p;
  }
  // "a b; c" for rounds of a and b, and of c.
  std::string rounds() const {
    std::string text;
    for (const MatrixRound& round : matrix_rounds(trained_, MeshShape({{"dp_shard", 2}, {"tp", 2}}))) {
      EXPECT_EQ(round.axis, "tp");
      if (!text.empty()) text += ";";
      for (const Parameter* p : round.matrices) text += (text.empty() ? "" : " ") + p->name;
    }
    return text;
  }

  std::vector<std::unique_ptr<Parameter>> owned_;
  std::vector<Parameter*> trained_;
};

TEST_F(MatrixRoundsTest, RanksTakeMatricesInTurnTheLargestFirst) {
  add("small", {2, 2});
  add("large", {8, 8});
  add("middle", {4, 4});
  EXPECT_EQ(rounds(), "large middle; small");
}

TEST_F(MatrixRoundsTest, AnUndividedMatrixAndOneSteppedInPartsHaveNone) {
  add("whole", {4, 4}, false);
  add("in parts", {4, 4}).granularity = Granularity::element();
  EXPECT_EQ(rounds(), "");
}

TEST_F(MatrixRoundsTest, MatricesWithOtherPlacementsOnOtherAxesAreInOtherRounds) {
  add("here", {4, 4});
  add("there", {4, 4}).descriptor.placements.push_back(Placement::only_on({"dp_shard"}, 1));
  EXPECT_EQ(rounds(), "here; there");
}

}  // namespace
}  // namespace chassis
