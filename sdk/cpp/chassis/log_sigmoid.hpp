// The logistic function and its logarithms, exact to a few ulp and finite for every finite argument.
#pragma once

#include <algorithm>
#include <cmath>

#include "chassis/namespace.hpp"

CHASSIS_SDK_BEGIN

// log(1 + e^x). The exponential never overflows, because its argument is not positive.
inline double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

// log σ(x). log(1 - σ(x)) is log_sigmoid(-x), and 1 - σ(x) is sigmoid(-x); both are exact where σ(x) rounds to 1.
inline double log_sigmoid(double x) { return -softplus(-x); }

inline double sigmoid(double x) {
  const double e = std::exp(-std::abs(x));
  return (x >= 0 ? 1 : e) / (1 + e);
}
// σ'(x) = σ(x) σ(-x)
inline double sigmoid_slope(double x) { return sigmoid(x) * sigmoid(-x); }

// -(1 - ε) log σ(x) - ε log σ(-x): the cross entropy of a preference that is wrong with probability ε, and its slope.
inline double smoothed_logistic(double x, double smoothing) {
  return (1 - smoothing) * softplus(-x) + smoothing * softplus(x);
}
inline double smoothed_logistic_slope(double x, double smoothing) {
  return smoothing * sigmoid(x) - (1 - smoothing) * sigmoid(-x);
}

// log(1 - e^x) for x < 0. The two forms change at -log 2 (Mächler 2012, "Accurately computing log(1 - exp(-|a|))").
inline double log1mexp(double x) {
  constexpr double kLog2 = 0.693147180559945309417;
  return x > -kLog2 ? std::log(-std::expm1(x)) : std::log1p(-std::exp(x));
}

// e^min(x, 80), which also fits fp32; above 80 the slope is 0.
constexpr double kLargestExponent = 80;
inline double capped_exp(double x) { return std::exp(std::min(x, kLargestExponent)); }
inline double capped_exp_slope(double x) { return x <= kLargestExponent ? std::exp(x) : 0; }
inline double capped_expm1(double x) { return std::expm1(std::min(x, kLargestExponent)); }

CHASSIS_SDK_END
