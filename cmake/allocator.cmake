# Installs the memory allocator beside the bundled server, into which the launcher loads it.

set(allocator_script
  "import importlib.metadata as m; print(m.distribution('cmeel-mimalloc').locate_file('cmeel.prefix/lib/libmimalloc.so.3'))")
execute_process(
  COMMAND ${Python_EXECUTABLE} -c "${allocator_script}"
  RESULT_VARIABLE allocator_result
  OUTPUT_VARIABLE allocator
  ERROR_QUIET
  OUTPUT_STRIP_TRAILING_WHITESPACE)
if(allocator_result EQUAL 0 AND EXISTS ${allocator})
  install(FILES ${allocator} DESTINATION pytriton/tritonserver/bin RENAME libmimalloc.so)
else()
  message(WARNING
    "The server is bundled without an allocator of its own, and serves small requests a tenth more slowly: "
    "`pip install cmeel-mimalloc==3.4.3` and build again.")
endif()
