// Pickles of torch.save are parsed; all others are refused with a reason, and nothing is executed.
#include "plugins/format/zero_import/pickle.hpp"

#include <gtest/gtest.h>

#include "chassis/tensor.h"
#include "torch_writer.hpp"

namespace zero_import {
namespace {

using namespace testing;

std::string defect_of(const std::string& bytes) {
  try {
    Pickle::parse(bytes);
  } catch (const Defect& defect) {
    return defect.what();
  }
  return "nothing was wrong";
}
void refuses(const std::string& value, const char* part) {
  const std::string text = defect_of(pickle_of(value));
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Pickle, ParsesWhatTorchSaves) {
  TorchWriter torch;
  const std::string value = dict({{text("n"), number(-5)},
                                  {text("x"), real(0.25)},
                                  {text("long"), std::string("\x8a\x03\x00\x00\x80", 5)},
                                  {text("none"), "N"},
                                  {text("flags"), tuple({"\x88", "\x89"})},
                                  {text("shape"), size_of({2, 3})},
                                  {text("w"), torch.tensor({2, 3}, {1, 2, 3, 4, 5, 6})}});
  const Pickle pickle = Pickle::parse(pickle_of(value));
  const Value& root = pickle.root();
  EXPECT_EQ(pickle.get(root, "n", Kind::kInt).integer, -5);
  EXPECT_EQ(pickle.get(root, "x", Kind::kFloat).real, 0.25);
  EXPECT_EQ(pickle.get(root, "long", Kind::kInt).integer, -(1 << 23));
  EXPECT_EQ(pickle.get(root, "none", Kind::kNone).kind, Kind::kNone);
  EXPECT_EQ(pickle.at(pickle.get(root, "flags", Kind::kTuple).items[0]).integer, 1);
  EXPECT_EQ(pickle.at(pickle.get(root, "shape", Kind::kTuple).items[1]).integer, 3);
  const TensorInfo& tensor = pickle.tensor(pickle.get(root, "w", Kind::kTensor));
  EXPECT_EQ(tensor.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(pickle.storage(tensor.storage).dtype, CHASSIS_DTYPE_F32);
  EXPECT_EQ(pickle.storage(tensor.storage).num_elements, 6u);
  EXPECT_EQ(pickle.find(root, "missing"), nullptr);
}

TEST(Pickle, ExecutesNothing) {
  refuses(call(global("os", "system"), tuple({text("touch owned")})),
          "the global 'os.system' is not one of those");
  refuses(call(global("posix", "system"), tuple({text("id")})), "'posix.system'");
  refuses(call(global("builtins", "eval"), tuple({text("1")})), "'builtins.eval'");
  refuses(call(global("__builtin__", "getattr"), tuple({text("1")})), "'__builtin__.getattr'");
  refuses(global("torch", "FloatStorage.__reduce__"), "'torch.FloatStorage.__reduce__'");
  refuses(global("torch.serialization", "load"), "'torch.serialization.load'");
  refuses(global("deepspeed.runtime.engine", "DeepSpeedEngine"), "'deepspeed.runtime.engine.DeepSpeedEngine'");
  refuses(global(std::string("collections\0x", 13), "OrderedDict"), "is not one of those");
  EXPECT_NE(defect_of(pickle_of(text("abc") + global("os", "system"))).find("the pickle's byte 10:"),
            std::string::npos);
  // Opcodes that find classes in other ways, or are not needed here: i o \x82 \x93 \x92 P 0 2.
  for (const char* opcode :
       {"ios\nsystem\n", "(o", "\x82\x01", "\x93", "\x92", "P1\n", "0", "2", "\x95", "\x8c", "B", "I1\n", "S'a'\n"})
    refuses(text("os") + text("system") + opcode, "is not one of those");
  // Allowed globals in the wrong role.
  refuses(call(text("x"), ")"), "a call of a text");
  refuses(call(global("torch", "FloatStorage"), ")"), "but is not a function");
  refuses(call(global("torch", "Tensor"), ")"), "but is not a function");
  refuses(global("collections", "OrderedDict") + ")\x81", "an object of collections.OrderedDict");
  refuses(call(global("torch._tensor", "_rebuild_from_type_v2"),
               tuple({global("torch._tensor", "_rebuild_from_type_v2"), global("torch", "Tensor"),
                      tuple({"N", "N", "N"}), "}"})),
          "is not a tensor");
  refuses(call(global("torch._tensor", "_rebuild_from_type_v2"), tuple({global("torch", "Size"), text("x"), ")", "}"})),
          "a type of a text");
}

TEST(Pickle, IsBoundedByItsBytes) {
  refuses(std::string("Nr\xff\xff\xff\x7f", 6), "memo 2147483647 is set, but the next one is 0");
  refuses("h\x05", "memo 5 was never set");
  refuses(std::string("X\xff\xff\xff\xff", 5), "cut short");
  refuses(std::string("\x8a\x09", 2) + std::string(9, '\x01'), "an integer of 9 bytes");
  refuses("t", "there is no mark");
  refuses("(a", "the stack is empty");
  refuses("NN", "values left on the stack");
  refuses("(N", "values left on the stack");
  refuses("](N", "values left on the stack");
  refuses("}(Nu", "a key without a value");
  refuses("N(Ne", "items for a list go to None");
  refuses("", "the stack is empty");
  EXPECT_NE(defect_of("\x80\x04N.").find("not a pickle of protocol 2"), std::string::npos);
  EXPECT_NE(defect_of("\x80\x02N").find("cut short"), std::string::npos);
  EXPECT_NE(defect_of("").find("not a pickle of protocol 2"), std::string::npos);

  // A value that contains itself, and one whose expansion would be exponential.
  EXPECT_EQ(defect_of(pickle_of(std::string("]q\0h\0a", 6))), "nothing was wrong");
  std::string doubled = std::string("]q\0", 3);
  for (char level = 1; level < 100; ++level)
    doubled += std::string("](h") + static_cast<char>(level - 1) + "h" + static_cast<char>(level - 1) + "eq" + level;
  EXPECT_EQ(defect_of(pickle_of("(" + doubled + "t")), "nothing was wrong");
  // A million marks and brackets: no recursion.
  EXPECT_NE(defect_of(pickle_of(std::string(1'000'000, '('))).find("the stack is empty"), std::string::npos);
  EXPECT_NE(defect_of(pickle_of(std::string(1'000'000, ']'))).find("left on the stack"), std::string::npos);
  EXPECT_NE(defect_of(pickle_of(std::string(kMaxValues + 1, 'N'))).find("more than 4000000 values"), std::string::npos);
  // A big tuple from the memo, passed to a function: without a limit, repeated calls would copy it.
  std::string big = "(" + std::string(100'000, 'N') + std::string("tq\0", 3);
  refuses(big + call(global("collections", "OrderedDict"), std::string("h\0", 2)), "is called with 100000 arguments");
}

TEST(Pickle, RefusesTensorsThatDoNotFitTheirStorage) {
  const auto storage = [](std::string_view type, int32_t count) {
    return tuple({text("storage"), global("torch", type), text("0"), text("cpu"), number(count)}) + "Q";
  };
  const auto tensor = [](const std::string& storage, int32_t offset, const std::string& size,
                         const std::string& stride) {
    return call(global("torch._utils", "_rebuild_tensor_v2"),
                tuple({storage, number(offset), size, stride, "\x89", "N"}));
  };
  const std::string six = storage("FloatStorage", 6);
  const auto sizes = [](std::vector<int32_t> numbers) {
    std::vector<std::string> items;
    for (const int32_t n : numbers) items.push_back(number(n));
    return tuple(items);
  };
  EXPECT_EQ(defect_of(pickle_of(tensor(six, 2, sizes({2, 2}), sizes({2, 1})))), "nothing was wrong");
  EXPECT_EQ(defect_of(pickle_of(tensor(six, 6, sizes({0}), sizes({1})))), "nothing was wrong");
  refuses(tensor(six, 3, sizes({2, 2}), sizes({2, 1})), "a tensor of 4 elements from 3 on, in a storage of 6");
  refuses(tensor(six, 0, sizes({7}), sizes({1})), "a tensor of 7 elements from 0 on");
  refuses(tensor(six, 0, sizes({2, 3}), sizes({1, 2})), "not contiguous");
  refuses(tensor(six, 0, sizes({2, 3}), sizes({0, 1})), "not contiguous");
  refuses(tensor(six, 0, sizes({2}), sizes({1, 1})), "another number of strides");
  refuses(tensor(six, -1, sizes({2}), sizes({1})), "a tensor without a storage");
  refuses(tensor(six, 0, sizes({-2}), sizes({1})), "not a valid size");
  refuses(tensor("N", 0, sizes({2}), sizes({1})), "a tensor without a storage");
  refuses(tensor(six, 0, text("22"), sizes({1})), "a tensor without a shape");
  const std::string huge = std::string("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", 10);
  refuses(tensor(six, 0, tuple({huge, huge}), tuple({huge, number(1)})), "overflows");
  refuses(storage("FloatStorage", -1), "a storage without a key or a size");
  refuses(tuple({text("storage"), global("torch", "DoubleStorage"), text("0"), text("cpu"), huge}) + "Q",
          "a storage without a key or a size");
  refuses(tuple({text("module"), text("x"), text("y"), text("z"), number(1)}) + "Q",
          "a persistent id that is not a storage");
  refuses(storage("Size", 1), "a storage of torch.Size");
}

}  // namespace
}  // namespace zero_import
