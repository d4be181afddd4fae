// chassis.gemm/1, called through its table and compared with a naive product in double precision.
#include "host/service/gemm.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "host/plugin/manifest.hpp"
#include "host/plugin/status.hpp"
#include "host/service/few_rows.hpp"
#include "host/service/few_rows_loops.hpp"
#include "host/service/host_services.hpp"
#include "host/service/threads.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A matrix in fp32 or bf16 whose rows are `ld` elements apart. The gaps between rows must not change.
class Matrix {
 public:
  Matrix(uint32_t dtype, int64_t rows, int64_t columns, int64_t gap)
      : dtype_(dtype),
        columns_(columns),
        ld_(std::max<int64_t>(1, columns + gap)),
        bytes_(static_cast<size_t>(std::max<int64_t>(1, rows) * ld_ * size())) {
    for (int64_t i = 0; i < rows * ld_; ++i) set(i, 7.0f);
  }

  void fill(uint32_t seed) {
    for (int64_t i = 0; i < rows(); ++i)
      for (int64_t j = 0; j < columns_; ++j) {
        seed = seed * 1664525u + 1013904223u;
        set(i * ld_ + j, static_cast<float>(seed >> 8) / static_cast<float>(1 << 23) - 1.0f);
      }
  }
  void fill_with(float value) {
    for (int64_t i = 0; i < rows(); ++i)
      for (int64_t j = 0; j < columns_; ++j) set(i * ld_ + j, value);
  }
  double at(int64_t i, int64_t j) const { return get(i * ld_ + j); }
  bool gaps_are_whole() const {
    for (int64_t i = 0; i < rows(); ++i)
      for (int64_t j = columns_; j < ld_; ++j)
        if (get(i * ld_ + j) != 7.0f) return false;
    return true;
  }
  void* data() { return bytes_.data(); }
  int64_t ld() const { return ld_; }
  uint32_t dtype() const { return dtype_; }

 private:
  int64_t size() const { return dtype_ == CHASSIS_DTYPE_F32 ? 4 : 2; }
  int64_t rows() const { return columns_ == 0 ? 0 : static_cast<int64_t>(bytes_.size()) / (ld_ * size()); }
  float get(int64_t i) const {
    uint32_t bits = 0;
    if (dtype_ == CHASSIS_DTYPE_F32) {
      std::memcpy(&bits, &bytes_[static_cast<size_t>(4 * i)], 4);
    } else {
      uint16_t half = 0;
      std::memcpy(&half, &bytes_[static_cast<size_t>(2 * i)], 2);
      bits = uint32_t{half} << 16;
    }
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  void set(int64_t i, float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (dtype_ == CHASSIS_DTYPE_F32) {
      std::memcpy(&bytes_[static_cast<size_t>(4 * i)], &bits, 4);
    } else {
      const auto half = static_cast<uint16_t>(bits >> 16);  // any bf16 will do
      std::memcpy(&bytes_[static_cast<size_t>(2 * i)], &half, 2);
    }
  }

  uint32_t dtype_;
  int64_t columns_, ld_;
  std::vector<char> bytes_;
};

struct Case {
  int64_t m, n, k;
  uint32_t flags = 0;
  uint32_t a_dtype = CHASSIS_DTYPE_F32, b_dtype = CHASSIS_DTYPE_F32, c_dtype = CHASSIS_DTYPE_F32;
  float alpha = 1, beta = 0;
  int64_t gap = 0;
};

class Operands {
 public:
  explicit Operands(const Case& c)
      : case_(c),
        a(c.a_dtype, transposed_a() ? c.k : c.m, transposed_a() ? c.m : c.k, c.gap),
        b(c.b_dtype, transposed_b() ? c.n : c.k, transposed_b() ? c.k : c.n, 2 * c.gap),
        c(c.c_dtype, c.m, c.n, c.gap) {
    a.fill(1), b.fill(2);
    if (case_.beta == 0)
      this->c.fill_with(kNan);
    else
      this->c.fill(3);
  }

  chassis_gemm_problem_t problem() {
    chassis_gemm_problem_t p{};
    p.struct_size = sizeof p;
    p.flags = case_.flags;
    p.a_dtype = a.dtype(), p.b_dtype = b.dtype(), p.c_dtype = c.dtype();
    p.m = case_.m, p.n = case_.n, p.k = case_.k;
    p.lda = a.ld(), p.ldb = b.ld(), p.ldc = c.ld();
    p.a = a.data(), p.b = b.data(), p.c = c.data();
    p.alpha = case_.alpha, p.beta = case_.beta;
    return p;
  }

  // Runs `product` and compares every element of c with a product in fp64, within the precision of c's dtype.
  template <typename Product>
  void expect_product(Product&& product) {
    const Matrix before = c;
    product(problem());
    EXPECT_TRUE(c.gaps_are_whole());
    const double unit = c.dtype() == CHASSIS_DTYPE_F32 ? 1e-6 : 1.0 / 256;
    for (int64_t i = 0; i < case_.m; ++i)
      for (int64_t j = 0; j < case_.n; ++j) {
        double sum = 0, size = 0;
        for (int64_t l = 0; l < case_.k; ++l) {
          const double term = (transposed_a() ? a.at(l, i) : a.at(i, l)) * (transposed_b() ? b.at(j, l) : b.at(l, j));
          sum += term;
          size += std::abs(term);
        }
        double expected = case_.alpha * sum;
        if (case_.beta != 0) expected += case_.beta * before.at(i, j);
        const double allowed = c.dtype() == CHASSIS_DTYPE_F32 ? unit * (1 + size) : unit * std::abs(expected) + 1e-6;
        ASSERT_NEAR(c.at(i, j), expected, allowed) << "element " << i << ", " << j;
      }
  }

 private:
  bool transposed_a() const { return (case_.flags & CHASSIS_GEMM_TRANSPOSE_A) != 0; }
  bool transposed_b() const { return (case_.flags & CHASSIS_GEMM_TRANSPOSE_B) != 0; }
  Case case_;

 public:
  Matrix a, b, c;
};

class Gemm : public testing::Test {
 protected:
  Gemm() {
    manifest_.id = "stub";
    manifest_.version = "1.0.0";
    InstanceContext context;
    context.plugin_id = context.member_id = "stub";
    context.kind = "ops";
    context.manifest = &manifest_;
    instance_ = services_.attach(context);
    table_ = static_cast<const chassis_gemm_t*>(instance_->get(CHASSIS_GEMM_ID));
  }
  // The code and the text of the status; empty if there is none.
  std::string run(const chassis_gemm_problem_t& problem) {
    chassis_status_t* status = table_->run(table_, &problem);
    if (!status) return "";
    const std::string text = std::to_string(status_code(status)) + " " + status_text(status);
    status_release(status);
    return text;
  }
  std::string run_many(const std::vector<chassis_gemm_problem_t>& problems) {
    chassis_status_t* status = table_->run_many(table_, problems.data(), static_cast<uint32_t>(problems.size()));
    const std::string text = status ? std::to_string(status_code(status)) + " " + status_text(status) : "";
    if (status) status_release(status);
    return text;
  }
  // Runs all of them at once after the first `i` have been added to `problems`.
  void expect_products(std::vector<Operands>& all, size_t i = 0, std::vector<chassis_gemm_problem_t> problems = {}) {
    if (i == all.size()) {
      EXPECT_EQ(run_many(problems), "");
      return;
    }
    SCOPED_TRACE(i);
    all[i].expect_product([&](const chassis_gemm_problem_t& problem) {
      problems.push_back(problem);
      expect_products(all, i + 1, problems);
    });
  }
  void expect_product(const Case& c) {
    Operands operands(c);
    operands.expect_product([&](const chassis_gemm_problem_t& problem) { EXPECT_EQ(run(problem), ""); });
  }

  MetricsStore metrics_;
  HostServices services_{7, metrics_};
  Manifest manifest_;
  std::unique_ptr<InstanceServices> instance_;
  const chassis_gemm_t* table_ = nullptr;
};

TEST_F(Gemm, IsTheProductInEveryTransposition) {
  for (uint32_t flags = 0; flags < 4; ++flags)
    for (const auto& [m, n, k] : {std::tuple{1, 1, 1}, {3, 5, 7}, {17, 33, 65}, {64, 48, 80}})
      for (const auto& [alpha, beta] : {std::pair{1.0f, 0.0f}, {1.0f, 1.0f}, {0.5f, -2.0f}})
        for (const int64_t gap : {0, 3}) {
          SCOPED_TRACE(testing::Message() << flags << " " << m << "×" << n << "×" << k << " beta " << beta);
          expect_product({.m = m, .n = n, .k = k, .flags = flags, .alpha = alpha, .beta = beta, .gap = gap});
        }
}

TEST_F(Gemm, TakesEveryMatrixInEitherDtype) {
  for (uint32_t flags = 0; flags < 4; ++flags)
    for (int dtypes = 1; dtypes < 8; ++dtypes)
      for (const float beta : {0.0f, 1.0f}) {
        SCOPED_TRACE(testing::Message() << flags << " dtypes " << dtypes << " beta " << beta);
        const auto dtype = [&](int bit) { return dtypes & bit ? CHASSIS_DTYPE_BF16 : CHASSIS_DTYPE_F32; };
        expect_product({.m = 19,
                        .n = 21,
                        .k = 35,
                        .flags = flags,
                        .a_dtype = dtype(1),
                        .b_dtype = dtype(2),
                        .c_dtype = dtype(4),
                        .beta = beta,
                        .gap = 1});
      }
}

// Runs on every CPU with AVX-512, whether or not LibTorch would be used there.
TEST_F(Gemm, ComputesTheSameFp32ProductByAvx512) {
  if (!can_multiply<float>()) GTEST_SKIP() << "this processor has no AVX-512";
  for (uint32_t flags = 0; flags < 4; ++flags)
    for (const auto& [m, n, k] : {std::tuple{1, 1, 1},
                                  {13, 16, 17},
                                  {12, 17, 384},
                                  {25, 33, 385},
                                  {49, 64, 40},
                                  {60, 50, 70},
                                  {491, 95, 20},
                                  {30, 1060, 33},
                                  {500, 70, 400}})
      for (const auto& [alpha, beta] : {std::pair{1.0f, 0.0f}, {1.0f, 1.0f}, {0.5f, -2.0f}})
        for (const int64_t gap : {0, 3}) {
          SCOPED_TRACE(testing::Message() << flags << " " << m << "×" << n << "×" << k << " beta " << beta);
          Operands operands({.m = m, .n = n, .k = k, .flags = flags, .alpha = alpha, .beta = beta, .gap = gap});
          operands.expect_product([&](const chassis_gemm_problem_t& problem) { multiply(product_of<float>(problem)); });
        }
}

TEST_F(Gemm, ComputesTheSameBf16ProductByAvx512) {
  if (!can_multiply<uint16_t>()) GTEST_SKIP() << "this processor has no AVX512-BF16";
  for (uint32_t flags = 0; flags < 4; ++flags)
    for (const auto& [m, n, k] : {std::tuple{1, 1, 1},
                                  {13, 16, 17},
                                  {12, 17, 769},
                                  {25, 33, 770},
                                  {49, 64, 40},
                                  {60, 50, 70},
                                  {485, 17, 20},
                                  {13, 1060, 17}})
      for (const auto& [alpha, beta] : {std::pair{1.0f, 0.0f}, {1.0f, 1.0f}, {0.5f, -2.0f}})
        for (const int64_t gap : {0, 3}) {
          SCOPED_TRACE(testing::Message() << flags << " " << m << "×" << n << "×" << k << " beta " << beta);
          Operands operands({.m = m,
                             .n = n,
                             .k = k,
                             .flags = flags,
                             .a_dtype = CHASSIS_DTYPE_BF16,
                             .b_dtype = CHASSIS_DTYPE_BF16,
                             .alpha = alpha,
                             .beta = beta,
                             .gap = gap});
          operands.expect_product(
              [&](const chassis_gemm_problem_t& problem) { multiply(product_of<uint16_t>(problem)); });
        }
}

TEST_F(Gemm, SumsTermsOfFp32InAnOrderThatDoesNotDependOnOtherRowsAndColumns) {
  if (!can_multiply<float>()) GTEST_SKIP() << "this processor has no AVX-512";
  constexpr int64_t kM = 70, kN = 100, kK = 500;
  Operands whole({.m = kM, .n = kN, .k = kK});
  multiply(product_of<float>(whole.problem()));
  for (const auto& [m, n] : {std::pair{1, 100}, {70, 1}, {13, 33}, {50, 64}}) {
    Operands part({.m = kM, .n = kN, .k = kK});
    auto product = product_of<float>(part.problem());
    product.m = m, product.n = n;
    multiply(product);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) ASSERT_EQ(part.c.at(i, j), whole.c.at(i, j)) << m << "×" << n;
  }
}

// The loops of every instruction set that this processor has.
TEST_F(Gemm, ComputesFewRowsByEveryInstructionSet) {
  std::vector<FewRowsLoops> all;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) all.push_back(few_rows_avx2());
  if (can_multiply<float>()) all.push_back(few_rows_avx512());
  if (can_multiply<uint16_t>()) all.push_back(few_rows_avx512_bf16());
#endif
  const auto run = [](const auto* values, const chassis_gemm_problem_t& p, auto columns) {
    using T = std::remove_cvref_t<decltype(*values)>;
    columns(FewRowsProblem<T>{p.m, p.n, p.k, static_cast<const T*>(p.a), p.lda, static_cast<const T*>(p.b), p.ldb, p.c,
                              p.ldc, p.c_dtype == CHASSIS_DTYPE_BF16, p.alpha, p.beta},
            0, p.n);
  };
  for (const FewRowsLoops& loops : all)
    for (const auto& [m, n, k] : {std::tuple{1, 1, 1}, {3, 5, 7}, {4, 8, 64}, {9, 33, 65}, {16, 6, 100}})
      for (const uint32_t dtype : {CHASSIS_DTYPE_F32, CHASSIS_DTYPE_BF16})
        for (const uint32_t c_dtype : {CHASSIS_DTYPE_F32, CHASSIS_DTYPE_BF16})
          for (const auto& [alpha, beta] : {std::pair{1.0f, 0.0f}, {0.5f, -2.0f}})
            for (const int64_t gap : {0, 3}) {
              SCOPED_TRACE(testing::Message() << m << "×" << n << "×" << k << " dtype " << dtype << " beta " << beta);
              Operands operands({.m = m,
                                 .n = n,
                                 .k = k,
                                 .flags = CHASSIS_GEMM_TRANSPOSE_B,
                                 .a_dtype = dtype,
                                 .b_dtype = dtype,
                                 .c_dtype = c_dtype,
                                 .alpha = alpha,
                                 .beta = beta,
                                 .gap = gap});
              operands.expect_product([&](const chassis_gemm_problem_t& problem) {
                if (dtype == CHASSIS_DTYPE_F32)
                  run(static_cast<const float*>(problem.a), problem, loops.fp32);
                else
                  run(static_cast<const uint16_t*>(problem.a), problem, loops.bf16);
              });
            }
}

// So that a text of a batch has the tokens that it has alone.
TEST_F(Gemm, ARowAmongAFewHasTheSameBitsAlone) {
  for (const uint32_t dtype : {CHASSIS_DTYPE_F32, CHASSIS_DTYPE_BF16}) {
    constexpr int64_t kM = 16, kN = 301, kK = 517;
    const Case whole_case{
        .m = kM, .n = kN, .k = kK, .flags = CHASSIS_GEMM_TRANSPOSE_B, .a_dtype = dtype, .b_dtype = dtype};
    Operands whole(whole_case), alone(whole_case);
    if (!has_few_rows(whole.problem())) GTEST_SKIP() << "this processor has neither AVX2 nor AVX-512";
    EXPECT_EQ(run(whole.problem()), "");
    for (int64_t i = 0; i < kM; ++i) {
      chassis_gemm_problem_t row = alone.problem();
      const int64_t size = dtype == CHASSIS_DTYPE_F32 ? 4 : 2;
      row.m = 1;
      row.a = static_cast<const char*>(row.a) + i * row.lda * size;
      row.c = static_cast<float*>(row.c) + i * row.ldc;
      EXPECT_EQ(run(row), "");
      for (int64_t j = 0; j < kN; ++j) ASSERT_EQ(alone.c.at(i, j), whole.c.at(i, j)) << "row " << i;
    }
  }
}

// Tests both methods, whichever this CPU would use.
TEST_F(Gemm, ComputesTheSameBf16ProductByBothMethods) {
  if (!has_native_bf16()) GTEST_SKIP() << "this LibTorch exports no bf16 product";
  for (uint32_t flags = 0; flags < 4; ++flags)
    for (const float beta : {0.0f, 1.0f})
      for (const Bf16Method method : {Bf16Method::kNative, Bf16Method::kWidened}) {
        SCOPED_TRACE(testing::Message() << flags << " beta " << beta << " method " << static_cast<int>(method));
        Operands operands({.m = 67,
                           .n = 41,
                           .k = 129,
                           .flags = flags,
                           .a_dtype = CHASSIS_DTYPE_BF16,
                           .b_dtype = CHASSIS_DTYPE_BF16,
                           .beta = beta,
                           .gap = 5});
        operands.expect_product([&](const chassis_gemm_problem_t& problem) { gemm(problem, method); });
      }
}

TEST_F(Gemm, ScalesCIfKIs0AndDoesNothingIfCIsEmpty) {
  expect_product({.m = 3, .n = 4, .k = 0, .beta = 0});
  expect_product({.m = 3, .n = 4, .k = 0, .beta = 0.5f});
  expect_product({.m = 3, .n = 4, .k = 0, .a_dtype = CHASSIS_DTYPE_BF16, .b_dtype = CHASSIS_DTYPE_BF16, .beta = 1});
  expect_product({.m = 0, .n = 4, .k = 5});
  expect_product({.m = 3, .n = 0, .k = 5});
  chassis_gemm_problem_t nothing = Operands({.m = 0, .n = 4, .k = 5}).problem();
  nothing.a = nothing.b = nothing.c = nullptr;
  EXPECT_EQ(run(nothing), "");
}

TEST_F(Gemm, RefusesInvalidProblemsAndLeavesCUnchanged) {
  Operands operands({.m = 3, .n = 4, .k = 5, .beta = 1});
  const Matrix before = operands.c;
  const auto refusal = [&](auto change) {
    chassis_gemm_problem_t problem = operands.problem();
    change(problem);
    EXPECT_EQ(table_->scratch_bytes(table_, &problem), 0u);
    return run(problem);
  };
  using P = chassis_gemm_problem_t;
  EXPECT_HAS(refusal([](P& p) { p.struct_size = 8; }), "the problem has 8 bytes, expected at least 104");
  EXPECT_HAS(refusal([](P& p) { p.flags = 4; }), "3 gemm: flags 4 are not known; this host knows 3");
  EXPECT_HAS(refusal([](P& p) { p.m = -1; }), "3 gemm: m = -1 is below 0");
  EXPECT_HAS(refusal([](P& p) { p.lda = 4; }), "3 gemm: lda = 4 is less than the 5 elements of a row of a");
  EXPECT_HAS(refusal([](P& p) { p.flags = CHASSIS_GEMM_TRANSPOSE_B; }),
             "3 gemm: ldb = 4 is less than the 5 elements of a row of b");
  EXPECT_HAS(refusal([](P& p) { p.ldc = 0; }), "3 gemm: ldc = 0 is less than the 4 elements of a row of c");
  EXPECT_HAS(refusal([](P& p) { p.ldc = INT64_MAX / 2; }), "more bytes than fit in 64 bits");
  EXPECT_HAS(refusal([](P& p) { p.b = nullptr; }), "3 gemm: b is NULL");
  EXPECT_HAS(refusal([](P& p) { p.c = nullptr; }), "3 gemm: c is NULL");
  EXPECT_HAS(refusal([](P& p) { p.c = const_cast<void*>(p.a); }), "3 gemm: c overlaps a");
  EXPECT_HAS(refusal([](P& p) { p.c_dtype = CHASSIS_DTYPE_F64; }),
             "12 gemm: c is of dtype 2, expected F32 (1) or BF16");
  EXPECT_HAS(refusal([](P& p) { p.device_type = CHASSIS_DEVICE_CUDA; }), "12 gemm: matrices lie on cuda:0");
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t j = 0; j < 4; ++j) EXPECT_EQ(operands.c.at(i, j), before.at(i, j));
}

TEST_F(Gemm, ManyAtOnceAreTheSameProducts) {
  for (uint32_t flags = 0; flags < 4; ++flags)
    for (const uint32_t dtype : {CHASSIS_DTYPE_F32, CHASSIS_DTYPE_BF16}) {
      SCOPED_TRACE(testing::Message() << flags << " dtype " << dtype);
      std::vector<Operands> all;
      for (const auto& [m, n, k] : {std::tuple{700, 24, 40}, {3, 5, 7}, {65, 33, 0}, {64, 48, 80}, {1, 9, 300}})
        for (const float beta : {0.0f, 1.0f})
          all.emplace_back(Case{.m = m,
                                .n = n,
                                .k = k,
                                .flags = flags,
                                .a_dtype = dtype,
                                .b_dtype = dtype,
                                .c_dtype = dtype,
                                .alpha = 0.5f,
                                .beta = beta,
                                .gap = 3});
      expect_products(all);
    }
}

TEST_F(Gemm, OneRefusalAmongManyLeavesEveryCUnchanged) {
  std::vector<Operands> all(3, Operands({.m = 3, .n = 4, .k = 5, .beta = 1}));
  std::vector<chassis_gemm_problem_t> problems;
  for (Operands& operands : all) problems.push_back(operands.problem());
  const Matrix before = all[0].c;
  problems[2].lda = 4;
  EXPECT_HAS(run_many(problems), "3 gemm: problem 3 of 3: lda = 4 is less than the 5 elements of a row of a");
  EXPECT_EQ(all[0].c.at(2, 3), before.at(2, 3));
  problems[0].struct_size = 8;
  EXPECT_HAS(run_many(problems), "problem 1 of 3 has 8 bytes, expected at least 104");
  EXPECT_EQ(run_many({}), "");
}

// Every thread gets about as much, and rows of c are covered once.
TEST_F(Gemm, DividesProblemsEvenly) {
  std::vector<chassis_gemm_problem_t> problems;
  std::vector<std::vector<int>> covered;
  std::vector<Operands> all;
  for (const int64_t m : {1000, 10, 70, 0, 300, 129}) all.emplace_back(Case{.m = m, .n = 8, .k = 16});
  double sum = 0;
  for (Operands& operands : all) {
    problems.push_back(operands.problem());
    covered.emplace_back(static_cast<size_t>(problems.back().m));
    sum += static_cast<double>(problems.back().m);
  }
  for (const int num_threads : {2, 3, 5}) {
    const auto lists = divide(problems, num_threads);
    ASSERT_EQ(lists.size(), static_cast<size_t>(num_threads));
    for (const auto& list : lists) {
      double rows = 0;
      for (const chassis_gemm_problem_t& part : list) {
        rows += static_cast<double>(part.m);
        for (size_t i = 0; i < problems.size(); ++i) {
          const auto first = static_cast<const float*>(part.c) - static_cast<const float*>(problems[i].c);
          if (part.b != problems[i].b) continue;
          EXPECT_EQ(static_cast<const float*>(part.a) - static_cast<const float*>(problems[i].a), first / 8 * 16);
          for (int64_t row = 0; row < part.m; ++row) ++covered[i].at(static_cast<size_t>(first / 8 + row));
        }
      }
      EXPECT_LE(rows, 1.25 * sum / num_threads) << num_threads;
    }
  }
  for (const auto& rows : covered)
    for (const int times : rows) EXPECT_EQ(times, 3);
  EXPECT_TRUE(divide(problems, 1).empty());
  EXPECT_TRUE(divide(std::span(problems).subspan(1, 1), 4).empty()) << "10 rows are too few to divide";
}

TEST_F(Gemm, ReportsTheBytesOfItsCopies) {
  const auto scratch = [&](const Case& c) {
    const chassis_gemm_problem_t problem = Operands(c).problem();
    return table_->scratch_bytes(table_, &problem);
  };
  EXPECT_EQ(scratch({.m = 8, .n = 4, .k = 16}), 0u);
  EXPECT_EQ(scratch({.m = 8, .n = 4, .k = 16, .a_dtype = CHASSIS_DTYPE_BF16}), 8u * 16 * 4);  // of two dtypes
  // Neither long nor narrow, and with few terms, so every processor multiplies fp32 copies.
  EXPECT_EQ(scratch({.m = 128, .n = 96, .k = 8, .a_dtype = CHASSIS_DTYPE_BF16, .b_dtype = CHASSIS_DTYPE_BF16}),
            (128u + 96) * 8 * 4);
  std::vector<Operands> all(2, Operands({.m = 8, .n = 4, .k = 16, .a_dtype = CHASSIS_DTYPE_BF16}));
  const std::vector<chassis_gemm_problem_t> problems = {all[0].problem(), all[1].problem()};
  EXPECT_EQ(table_->many_scratch_bytes(table_, problems.data(), 2), std::min(2, num_threads()) * 8u * 16 * 4);
  EXPECT_EQ(table_->many_scratch_bytes(table_, problems.data(), 1), 8u * 16 * 4);
}

}  // namespace
}  // namespace chassis
