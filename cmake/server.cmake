# Puts the bundled server into the build folder and installs it with the package.

find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)
set(server_dir ${CMAKE_CURRENT_BINARY_DIR}/tritonserver)
set(fetch_script ${CMAKE_CURRENT_SOURCE_DIR}/build_tools/fetch_server.py)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
  ${fetch_script} ${CMAKE_CURRENT_SOURCE_DIR}/build_tools/transfer_size.py)

set(fetch_options)
if(NOT PYTRITON_TUNE_SERVER)
  set(fetch_options --as-published)
endif()
execute_process(
  COMMAND ${CMAKE_COMMAND} -E env --unset=PYTHONSAFEPATH ${Python_EXECUTABLE} ${fetch_script} ${server_dir} ${fetch_options}
  RESULT_VARIABLE fetch_result
  ERROR_VARIABLE fetch_error
  ERROR_STRIP_TRAILING_WHITESPACE)
if(NOT fetch_result EQUAL 0)
  message(FATAL_ERROR "${fetch_error}")
endif()

install(DIRECTORY ${server_dir}/ DESTINATION pytriton/tritonserver USE_SOURCE_PERMISSIONS)
install(DIRECTORY build_tools/licenses/ DESTINATION pytriton/tritonserver/licenses)
