// ATen's operators by name, and their schemas as text.
#pragma once

#include <string>
#include <string_view>

namespace chassis {

struct Manifest;

// "aten::add.Tensor" of "aten::add.Tensor(Tensor self, …) -> Tensor".
std::string_view operator_name(std::string_view schema);
// The schema of this LibTorch; empty if it has no such operator.
std::string operator_schema(std::string_view name);
// Throws a plugin error that names both texts.
void check_operator_schemas(const Manifest& manifest);

}  // namespace chassis
