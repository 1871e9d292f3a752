"""`qserve train`: `options` its flags, `command` the story, `fitting` what runs here, `follow` the screen."""
