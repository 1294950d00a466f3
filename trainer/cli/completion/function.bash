
_leyden() {
    local words=() cur='' cut='' word line=${COMP_LINE:0:COMP_POINT}
    read -ra words <<<"$line"
    if [[ $line != *[[:space:]] ]]; then
        cur=${words[${#words[@]} - 1]}
        words=("${words[@]:0:${#words[@]}-1}")
    fi
    _leyden_find "$cur" "${words[@]:1}"
    # readline replaces what follows the last of COMP_WORDBREAKS
    [[ $COMP_WORDBREAKS == *=* && $cur == *=* ]] && cut=${cur%"${cur##*=}"}
    COMPREPLY=()
    for word in "${_leyden_words[@]}"; do
        [[ $word == "$cur"* ]] && COMPREPLY+=("${word#"$cut"}")
    done
    if [[ -n $_leyden_files ]]; then
        compopt -o filenames 2>/dev/null
        for word in "${cur##*=}"*; do
            [[ -e $word ]] && COMPREPLY+=("${cur%"${cur##*=}"}$word")
        done
        [[ -n $cut ]] && COMPREPLY=("${COMPREPLY[@]#"$cut"}")
    fi
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=.] ]] && compopt -o nospace 2>/dev/null
    return 0
}
complete -F _leyden leyden
