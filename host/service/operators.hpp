// ATen's operators by name, and their schemas as text.
#pragma once

#include <string>
#include <string_view>

namespace chassis {

struct Manifest;

// "aten::add.Tensor" for "aten::add.Tensor(Tensor self, …) -> Tensor".
std::string_view operator_name(std::string_view schema);
// The operator's schema in this LibTorch; empty if there is none.
std::string operator_schema(std::string_view name);
// True if a plugin that was built for the schema `declared` can call an operator with the schema `ours`: they are
// equal, or `ours` has more arguments at its end, with defaults, as later versions of LibTorch add them.
bool serves_schema(std::string_view ours, std::string_view declared);
// Throws a plugin error with both schemas if this LibTorch lacks an operator of the manifest, or does not serve it.
void check_operator_schemas(const Manifest& manifest);

}  // namespace chassis
