// All that plans scans, in the translation unit of kernels that a test compiles for the host.
#include "plan/layout.cpp"
#include "plan/scan.cpp"
#include "plan/scan_columns.cpp"
#include "plan/scan_lines.cpp"
#include "plan/scan_windows.cpp"
