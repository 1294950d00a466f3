
_leyden() {
    local word
    local -a before open whole
    before=("${(@)words[2,CURRENT-1]}")
    _leyden_find "${words[CURRENT]}" "${before[@]}"
    for word in "${_leyden_words[@]}"; do
        if [[ $word == *[=.] ]]; then open+=("$word"); else whole+=("$word"); fi
    done
    compadd -Q -S '' -a open
    compadd -Q -a whole
    if [[ -n $_leyden_files ]]; then
        compset -P '*='
        _files
    fi
}

if [[ $funcstack[1] == _leyden ]]; then
    _leyden "$@"
else
    compdef _leyden leyden
fi
