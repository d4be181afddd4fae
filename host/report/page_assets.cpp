// The assembler puts the files between two symbols each.
#include "host/report/page_assets.hpp"

#define CHASSIS_ASSET(name, file)                                                                    \
  asm(".section .rodata\n" #name "_begin:\n.incbin \"" file "\"\n" #name "_end:\n.byte 0\n.text\n"); \
  extern "C" __attribute__((visibility("hidden"))) const char name##_begin[], name##_end[];

CHASSIS_ASSET(chassis_page_css, CHASSIS_PAGE_DIR "/page.css")
CHASSIS_ASSET(chassis_page_js, CHASSIS_PAGE_DIR "/page.js")
CHASSIS_ASSET(chassis_uplot_css, CHASSIS_UPLOT_DIR "/uPlot.min.css")
CHASSIS_ASSET(chassis_uplot_js, CHASSIS_UPLOT_DIR "/uPlot.iife.js")

namespace chassis {

std::string_view page_style() { return {chassis_page_css_begin, chassis_page_css_end}; }
std::string_view page_script() { return {chassis_page_js_begin, chassis_page_js_end}; }
std::string_view uplot_style() { return {chassis_uplot_css_begin, chassis_uplot_css_end}; }
std::string_view uplot_script() { return {chassis_uplot_js_begin, chassis_uplot_js_end}; }

}  // namespace chassis
