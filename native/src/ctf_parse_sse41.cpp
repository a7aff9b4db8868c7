#define FEEDLINE_CTF_SSE 1
#include "ctf_parse_core.h"

namespace feedline {

void ctf_parse_sse41(CtfParseJob& job) { run_job(job); }

}  // namespace feedline
