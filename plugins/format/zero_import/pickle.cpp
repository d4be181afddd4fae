// Parses pickles with a small stack machine that knows only the opcodes of torch.save, and calls nothing.
#include "pickle.hpp"

#include <algorithm>
#include <bit>

#include "pickle_globals.hpp"

namespace zero_import {
namespace {

constexpr int kMaxDims = 64;
constexpr size_t kMaxArguments = 16;

}  // namespace

std::string_view kind_name(Kind kind) {
  static constexpr std::string_view kNames[] = {"None",   "a bool", "an int",   "a float",   "a text",    "a tuple",
                                                "a list", "a dict", "a global", "an object", "a storage", "a tensor"};
  return kNames[static_cast<size_t>(kind)];
}

// The pickle machine: a stack, marks in it, and a memo. An opcode adds at most one value to each of them.
class PickleMachine {
 public:
  explicit PickleMachine(std::string_view bytes) : bytes_(bytes) {}

  Pickle run() {
    if (bytes_.size() > kMaxPickleBytes)
      throw Defect("the pickle has " + std::to_string(bytes_.size()) + " bytes, at most " +
                   std::to_string(kMaxPickleBytes) + " are read");
    if (bytes_.size() < 2 || bytes_[0] != '\x80' || bytes_[1] != 2)
      throw Defect("it is not a pickle of protocol 2, which torch.save writes");
    at_ = 2;
    while (!done_) {
      opcode_at_ = at_;
      step(static_cast<unsigned char>(take(1)[0]));
    }
    return std::move(out_);
  }

 private:
  // --- bytes --------------------------------------------------------------------------------------------------------

  [[noreturn]] void fail(const std::string& what) const {
    throw Defect("the pickle's byte " + std::to_string(opcode_at_) + ": " + what);
  }
  std::string_view take(uint64_t num_bytes) {
    if (num_bytes > bytes_.size() - at_) fail("it is cut short");
    const std::string_view taken = bytes_.substr(at_, num_bytes);
    at_ += num_bytes;
    return taken;
  }
  std::string_view take_line() {
    const size_t end = bytes_.find('\n', at_);
    if (end == bytes_.npos) fail("it is cut short");
    const std::string_view line = take(end - at_);
    ++at_;
    return line;
  }
  template <typename T>
  T take_number() {
    return number_at<T>(take(sizeof(T)), 0);
  }

  // --- values -------------------------------------------------------------------------------------------------------

  ValueId add(Value value) {
    if (out_.values_.size() == kMaxValues) fail("it has more than " + std::to_string(kMaxValues) + " values");
    out_.values_.push_back(std::move(value));
    return static_cast<ValueId>(out_.values_.size() - 1);
  }
  Value& value(ValueId id) { return out_.values_[id]; }
  void push(Value value) { stack_.push_back(add(std::move(value))); }
  void push_int(int64_t number) { push({Kind::kInt, number, 0, {}, {}}); }

  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  ValueId pop() {
    if (stack_.size() <= floor()) fail("the stack is empty");
    const ValueId top = stack_.back();
    stack_.pop_back();
    return top;
  }
  ValueId top() const {
    if (stack_.size() <= floor()) fail("the stack is empty");
    return stack_.back();
  }
  // Everything above the last mark.
  std::vector<ValueId> pop_to_mark() {
    if (marks_.empty()) fail("there is no mark");
    std::vector<ValueId> items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  void push_tuple(size_t count) {
    std::vector<ValueId> items(count);
    for (size_t i = count; i-- > 0;) items[i] = pop();
    push({Kind::kTuple, 0, 0, {}, std::move(items)});
  }
  void append(Kind kind, const std::vector<ValueId>& items) {
    Value& target = value(top());
    if (target.kind != kind)
      fail("items for " + std::string(kind_name(kind)) + " go to " + std::string(kind_name(target.kind)));
    if (kind == Kind::kDict && items.size() % 2 != 0) fail("a key without a value");
    target.items.insert(target.items.end(), items.begin(), items.end());
  }

  void remember(uint32_t index) {
    if (index > memo_.size())
      fail("memo " + std::to_string(index) + " is set, but the next one is " + std::to_string(memo_.size()));
    if (index == memo_.size()) {
      memo_.push_back(top());
    } else {
      memo_[index] = top();
    }
  }
  void recall(uint32_t index) {
    if (index >= memo_.size()) fail("memo " + std::to_string(index) + " was never set");
    stack_.push_back(memo_[index]);
  }

  // --- opcodes ------------------------------------------------------------------------------------------------------

  void step(unsigned char opcode) {
    switch (opcode) {
      case '.':
        return stop();
      case '(':
        return marks_.push_back(stack_.size());
      case 'N':
        return push({});
      case 0x88:
      case 0x89:
        return push({Kind::kBool, opcode == 0x88, 0, {}, {}});
      case 'J':
        return push_int(static_cast<int32_t>(take_number<uint32_t>()));
      case 'K':
        return push_int(take_number<uint8_t>());
      case 'M':
        return push_int(take_number<uint16_t>());
      case 0x8a:
        return push_long();
      case 'G':
        return push_float();
      case 'X':
        return push({Kind::kText, 0, 0, std::string(take(take_number<uint32_t>())), {}});
      case ')':
        return push_tuple(0);
      case 0x85:
      case 0x86:
      case 0x87:
        return push_tuple(opcode - 0x84u);
      case 't':
        return push({Kind::kTuple, 0, 0, {}, pop_to_mark()});
      case ']':
        return push({Kind::kList, 0, 0, {}, {}});
      case '}':
        return push({Kind::kDict, 0, 0, {}, {}});
      case 'a':
        return append(Kind::kList, {pop()});
      case 'e':
        return append(Kind::kList, pop_to_mark());
      case 's':
        return set_item();
      case 'u':
        return append(Kind::kDict, pop_to_mark());
      case 'q':
        return remember(take_number<uint8_t>());
      case 'r':
        return remember(take_number<uint32_t>());
      case 'h':
        return recall(take_number<uint8_t>());
      case 'j':
        return recall(take_number<uint32_t>());
      case 'c':
        return push_global();
      case 'Q':
        return push_storage();
      case 'R':
        return reduce();
      case 0x81:
        return new_object();
      case 'b':
        return build();
      default:
        fail("opcode " + std::to_string(opcode) + " is not one of those that a checkpoint needs");
    }
  }

  void stop() {
    out_.root_ = pop();
    if (!stack_.empty() || !marks_.empty()) fail("it ends with values left on the stack");
    done_ = true;
  }

  void push_long() {
    const auto count = take_number<uint8_t>();
    if (count > 8) fail("an integer of " + std::to_string(count) + " bytes");
    const std::string_view bytes = take(count);
    uint64_t number = count > 0 && (bytes[count - 1u] & 0x80) != 0 ? UINT64_MAX : 0;
    for (size_t i = count; i-- > 0;) number = number << 8 | static_cast<unsigned char>(bytes[i]);
    push_int(static_cast<int64_t>(number));
  }

  void push_float() {  // the only big-endian number
    uint64_t bits = 0;
    for (const char byte : take(8)) bits = bits << 8 | static_cast<unsigned char>(byte);
    push({Kind::kFloat, 0, std::bit_cast<double>(bits), {}, {}});
  }

  void set_item() {
    const ValueId item = pop(), key = pop();
    append(Kind::kDict, {key, item});
  }

  void push_global() {
    const std::string_view module = take_line(), name = take_line();
    for (size_t i = 0; i < std::size(kGlobals); ++i) {
      if (kGlobals[i].module == module && kGlobals[i].name == name)
        return push({Kind::kGlobal, static_cast<int64_t>(i), 0, std::string(module) + "." + std::string(name), {}});
    }
    fail("the global " + shown(std::string(module) + "." + std::string(name)) +
         " is not one of those that a checkpoint needs; nothing is executed");
  }

  const Global& global(ValueId id, const char* where) {
    if (value(id).kind != Kind::kGlobal) fail(std::string(where) + " of " + std::string(kind_name(value(id).kind)));
    return kGlobals[value(id).integer];
  }

  // ('storage', type, key, location, number of elements)
  void push_storage() {
    const ValueId id = pop();
    if (value(id).kind != Kind::kTuple || value(id).items.size() != 5 || value(value(id).items[0]).text != "storage")
      fail("a persistent id that is not a storage");
    const std::vector<ValueId> items = value(id).items;
    const Global& type = global(items[1], "a storage");
    if (type.meaning != Meaning::kStorageType) fail("a storage of " + value(items[1]).text);
    const Value& count = value(items[4]);
    if (value(items[2]).kind != Kind::kText || count.kind != Kind::kInt || count.integer < 0 ||
        static_cast<uint64_t>(count.integer) > UINT64_MAX / dtype_bytes(type.dtype))
      fail("a storage without a key or a size");
    out_.storages_.push_back({type.dtype, value(items[2]).text, static_cast<uint64_t>(count.integer)});
    push({Kind::kStorage, static_cast<int64_t>(out_.storages_.size() - 1), 0, {}, {}});
  }

  void reduce() {
    const ValueId arguments = pop(), function = pop();
    stack_.push_back(call(function, arguments, true));
  }

  // `may_nest`: kRebuildFromType may call another function, which may not nest again.
  ValueId call(ValueId function, ValueId arguments, bool may_nest) {
    const Global& what = global(function, "a call");
    const std::string name = value(function).text;
    if (value(arguments).kind != Kind::kTuple) fail(name + " is called without a tuple");
    if (value(arguments).items.size() > kMaxArguments)  // a call copies them, so without a limit the work is not linear
      fail(name + " is called with " + std::to_string(value(arguments).items.size()) + " arguments");
    const std::vector<ValueId> items = value(arguments).items;
    const auto expect = [&](size_t least) {
      if (items.size() < least) fail(name + " is called with " + std::to_string(items.size()) + " arguments");
    };
    switch (what.meaning) {
      case Meaning::kOrderedDict:
        if (!items.empty()) fail(name + " is called with arguments");
        return add({Kind::kDict, 0, 0, {}, {}});
      case Meaning::kSize:
        expect(1);
        if (value(items[0]).kind != Kind::kTuple) fail(name + " of " + std::string(kind_name(value(items[0]).kind)));
        return items[0];
      case Meaning::kEnum:
        expect(1);
        if (value(items[0]).kind != Kind::kInt) fail(name + " of " + std::string(kind_name(value(items[0]).kind)));
        return items[0];
      case Meaning::kRebuildTensor:
        expect(4);
        return tensor_of(items);
      case Meaning::kRebuildParameter:
        expect(1);
        if (value(items[0]).kind != Kind::kTensor) fail(name + " of " + std::string(kind_name(value(items[0]).kind)));
        return items[0];
      case Meaning::kRebuildFromType:
        expect(3);
        if (!may_nest || global(items[1], "a type").meaning != Meaning::kTensorType)
          fail(name + " of something that is not a tensor");
        return call(items[0], items[2], false);
      case Meaning::kRecord:
        return add({Kind::kRecord, 0, 0, name, items});
      default:
        fail(name + " is called, but is not a function");
    }
  }

  std::vector<int64_t> integers_of(ValueId tuple) {
    const Value& from = value(tuple);
    if (from.kind != Kind::kTuple || from.items.size() > static_cast<size_t>(kMaxDims))
      fail("a tensor without a shape");
    std::vector<int64_t> numbers;
    for (const ValueId item : from.items) {
      if (value(item).kind != Kind::kInt || value(item).integer < 0)
        fail("a shape with an item that is not a valid size");
      numbers.push_back(value(item).integer);
    }
    return numbers;
  }

  // (storage, offset, size, stride, …). Requires a contiguous tensor inside its storage.
  ValueId tensor_of(const std::vector<ValueId>& items) {
    if (value(items[0]).kind != Kind::kStorage || value(items[1]).kind != Kind::kInt || value(items[1]).integer < 0)
      fail("a tensor without a storage");
    TensorInfo tensor{static_cast<uint32_t>(value(items[0]).integer), static_cast<uint64_t>(value(items[1]).integer),
                      integers_of(items[2])};
    const std::vector<int64_t> strides = integers_of(items[3]);
    if (strides.size() != tensor.shape.size()) fail("a tensor with another number of strides than of dims");
    const bool is_empty = std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end();
    uint64_t count = 1;
    for (size_t dim = strides.size(); dim-- > 0;) {
      if (!is_empty && tensor.shape[dim] != 1 && static_cast<uint64_t>(strides[dim]) != count)
        fail("a tensor that is not contiguous");
      if (!is_empty && __builtin_mul_overflow(count, static_cast<uint64_t>(tensor.shape[dim]), &count))
        fail("a tensor whose size overflows");
    }
    if (is_empty) count = 0;
    const uint64_t held = out_.storages_[tensor.storage].num_elements;
    if (tensor.offset > held || count > held - tensor.offset)
      fail("a tensor of " + std::to_string(count) + " elements from " + std::to_string(tensor.offset) +
           " on, in a storage of " + std::to_string(held));
    out_.tensors_.push_back(std::move(tensor));
    return add({Kind::kTensor, static_cast<int64_t>(out_.tensors_.size() - 1), 0, {}, {}});
  }

  void new_object() {
    const ValueId arguments = pop(), type = pop();
    const Global& what = global(type, "an object");
    if (what.meaning != Meaning::kRecord) fail("an object of " + value(type).text);
    stack_.push_back(call(type, arguments, false));
  }

  // Keeps the state of a record, and ignores attributes of a dict, such as the versions of a state_dict.
  void build() {
    const ValueId state = pop();
    Value& target = value(top());
    if (target.kind == Kind::kRecord) {
      target.items.push_back(state);
    } else if (target.kind != Kind::kDict) {
      fail("a state for " + std::string(kind_name(target.kind)));
    }
  }

  const std::string_view bytes_;
  size_t at_ = 0, opcode_at_ = 0;
  bool done_ = false;
  Pickle out_;
  std::vector<ValueId> stack_, memo_;
  std::vector<size_t> marks_;  // positions in the stack
};

Pickle Pickle::parse(std::string_view bytes) { return PickleMachine(bytes).run(); }

const Value* Pickle::find(const Value& dict, std::string_view key) const {
  if (dict.kind != Kind::kDict) throw Defect(shown(key) + " is looked for in " + std::string(kind_name(dict.kind)));
  const Value* found = nullptr;  // the last one wins, as in Python
  for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    const Value& name = at(dict.items[i]);
    if (name.kind == Kind::kText && name.text == key) found = &at(dict.items[i + 1]);
  }
  return found;
}

const Value& Pickle::get(const Value& dict, std::string_view key, Kind kind) const {
  const Value* found = find(dict, key);
  if (found == nullptr) throw Defect("there is no " + shown(key));
  if (found->kind != kind)
    throw Defect(shown(key) + " is " + std::string(kind_name(found->kind)) + ", not " + std::string(kind_name(kind)));
  return *found;
}

}  // namespace zero_import
