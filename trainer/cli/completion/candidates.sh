# Completion of `leyden`, made by `leyden completion`. It reads an index; neither Python nor Hydra is started.
_leyden_index='@INDEX@'

# _leyden_find WORD BEFORE...: candidates for a word after these, in the array _leyden_words; _leyden_files is 1 where
# files may follow. For bash and for zsh in its emulation of ksh.
_leyden_find() {
    [ -n "$ZSH_VERSION" ] && emulate -L ksh
    local cur="$1" verb='' config='' previous='' taken='' word kind a b mark='' name='' value='' known=' '
    local verbs=' ' valued=' ' values='' paths=' ' keyed=' ' part folder
    shift
    _leyden_words=() _leyden_files=''
    [ -r "$_leyden_index" ] || { _leyden_files=1; return 0; }
    while read -r kind a b; do
        case $kind in
            V) verbs+="$a " ;;
            A) valued+="$a:$b " ;;
            P) paths+="$a " ;;
            O) keyed+="$a " ;;
            G) break ;;
        esac
    done <"$_leyden_index"
    for word in "$@"; do
        if [[ -n $previous ]]; then
            [[ $previous == --config-dir || $previous == -cd ]] && config=$word
            previous=''
        elif [[ $word == --config-dir=* ]]; then
            config=${word#*=}
        elif [[ $word == -* ]]; then
            [[ $valued == *" $word:"* ]] && previous=$word
        elif [[ -z $verb ]]; then
            if [[ $verbs == *" $word "* ]]; then verb=$word; else verb=train taken=1; fi
        else
            taken=1
        fi
    done
    [[ $config == '~'* ]] && config=$HOME${config#?}
    if [[ -n $previous ]]; then
        value=${valued#*" $previous:"}
        value=${value%% *}
        case $value in
            dir | file) _leyden_files=1 ;;
            *'|'*) while [[ -n $value ]]; do
                _leyden_add "${value%%|*}"
                [[ $value == *'|'* ]] || break
                value=${value#*|}
            done ;;
        esac
        return 0
    fi
    if [[ $cur == -* ]]; then
        while read -r kind a b; do
            [[ $kind == F && ($a == "${verb:-train}" || $a == '*') ]] && _leyden_add "$b"
        done <"$_leyden_index"
        return 0
    fi
    if [[ $cur == *=* ]]; then
        name=${cur%%=*}
        value=${cur#*=}
        mark=$name=${value%"${value##*[\[,]}"}
        while [[ $name == [+~]* ]]; do name=${name#?}; done
        _leyden_files=1
        while read -r kind a b; do
            case $kind in
                C) [[ $a == "$name" ]] && _leyden_files='' && _leyden_add "$mark$b" ;;
                K) [[ $a == "$name" && $b == bool ]] && _leyden_files='' && _leyden_add "${mark}true" && _leyden_add "${mark}false" ;;
            esac
        done <"$_leyden_index"
        if [[ -n $config && -d $config/$name ]]; then
            for word in "$config/$name"/*.yaml; do
                [[ -e $word ]] || continue
                word=${word##*/} _leyden_files=''
                _leyden_add "$mark${word%.yaml}"
            done
        fi
        return 0
    fi
    while [[ $cur == [+~]* ]]; do mark+=${cur:0:1} cur=${cur#?}; done
    if [[ -z $verb ]]; then
        for word in $verbs; do _leyden_add "$word"; done
        verb=train
    fi
    [[ $paths == *" $verb "* ]] && _leyden_files=1
    while read -r kind a b; do
        case $kind in
            S) [[ $a == "$verb" && -z $taken ]] && _leyden_add "$b" ;;
            V) [[ $verb == help ]] && _leyden_add "$a" ;;
            G) [[ $keyed == *" $verb "* ]] && _leyden_add "$mark$a=" ;;
            N) [[ $a == "$verb" ]] && _leyden_add "$b=" ;;
            K)
                # the next part of the key: trainer. before trainer.max_epochs=
                [[ $keyed == *" $verb "* && $a == "$cur"* ]] || continue
                part=${a#"$cur"}
                if [[ $part == *.* ]]; then part=$cur${part%%.*}.; else part=$a=; fi
                [[ $known == *" $part "* ]] && continue
                known+="$part "
                _leyden_add "$mark$part"
                ;;
        esac
    done <"$_leyden_index"
    if [[ -n $config && $keyed == *" $verb "* ]]; then
        for folder in "$config"/*/; do
            folder=${folder%/}
            word=$mark${folder##*/}=
            [[ -d $folder && " ${_leyden_words[*]} " != *" $word "* ]] && _leyden_add "$word"
        done
    fi
    return 0
}

_leyden_add() {
    _leyden_words+=("$1")
}
