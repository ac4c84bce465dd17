# Generates python_models/supervision_policy.h from the policy that the Python half uses, too.
set(supervision_file ${CMAKE_CURRENT_LIST_DIR}/../pytriton/process/supervision.json)
set(generated_dir ${CMAKE_CURRENT_BINARY_DIR}/generated)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${supervision_file})
file(READ ${supervision_file} supervision)
foreach(key first_delay_ms max_delay_ms reset_after_ms restarting)
  string(JSON ${key} GET "${supervision}" ${key})
endforeach()
configure_file(${CMAKE_CURRENT_LIST_DIR}/supervision_policy.h.in ${generated_dir}/python_models/supervision_policy.h @ONLY)
