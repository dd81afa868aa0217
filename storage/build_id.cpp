// The note lies in the program's own image: nothing is read from disk.
#include "storage/build_id.h"

#include <cstdio>
#include <elf.h>
#include <link.h>

namespace troupe {

namespace {

size_t padded(size_t n) { return (n + 3) / 4 * 4; }

std::string id_in_notes(const char* at, const char* end) {
  while (at + sizeof(ElfW(Nhdr)) <= end) {
    const auto& note = *reinterpret_cast<const ElfW(Nhdr)*>(at);
    const char* const owner = at + sizeof note;
    const char* const bytes = owner + padded(note.n_namesz);
    if (note.n_type == NT_GNU_BUILD_ID && std::string(owner, note.n_namesz) == std::string(ELF_NOTE_GNU, 4)) {
      std::string hex;
      for (size_t i = 0; i < note.n_descsz; ++i) {
        char two[3];
        std::snprintf(two, sizeof two, "%02x", static_cast<unsigned>(static_cast<unsigned char>(bytes[i])));
        hex += two;
      }
      return hex;
    }
    at = bytes + padded(note.n_descsz);
  }
  return {};
}

// Called for the program first, and for it alone.
int look(dl_phdr_info* info, size_t, void* out) {
  auto& id = *static_cast<std::string*>(out);
  for (int i = 0; i < info->dlpi_phnum && id.empty(); ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_NOTE) continue;
    const auto* const from = reinterpret_cast<const char*>(info->dlpi_addr + part.p_vaddr);
    id = id_in_notes(from, from + part.p_memsz);
  }
  return 1;
}

} // namespace

const std::string& build_id() {
  static const std::string id = [] {
    std::string found;
    ::dl_iterate_phdr(look, &found);
    return found;
  }();
  return id;
}

} // namespace troupe
