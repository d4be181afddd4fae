// Reads lines of standard input, which a signal can interrupt, and catches the Ctrl-C that ends an answer.
#pragma once

#include <string>

namespace chassis {

class LineInput {
 public:
  enum class Result { kLine, kInterrupted, kEnd };
  // Blocks. The last line may lack its line break. Throws a storage error if the input cannot be read.
  Result next(std::string& line);
  bool is_terminal() const;

 private:
  std::string pending_;
  bool ended_ = false;
};

// During its lifetime, SIGINT interrupts next() and sets a flag, and does not end the program. Only one may exist.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  bool arrived() const;
  void forget();
};

}  // namespace chassis
