# Completion of `leyden`, made by `leyden completion fish`. It reads an index; neither Python nor Hydra is started.
set -g __leyden_index '@INDEX@'

# Entries of the index that match, without what matches.
function __leyden_entries
    string replace -rf -- "^$argv[1]" '' $__leyden_lines
end

function __leyden_candidates
    test -r $__leyden_index; or return
    set -l cur (commandline -ct | string collect)
    set -l before (commandline -opc)[2..]
    set -g __leyden_lines
    while read -l line
        set -a __leyden_lines $line
    end <$__leyden_index
    set -l verbs (__leyden_entries 'V ')
    set -l verb ''
    set -l config ''
    set -l previous ''
    set -l taken 0
    for word in $before
        if test -n "$previous"
            contains -- $previous --config-dir -cd; and set config $word
            set previous ''
        else if string match -q -- '--config-dir=*' $word
            set config (string replace -- '--config-dir=' '' $word)
        else if string match -q -- '-*' $word
            string match -q -- "A $word *" $__leyden_lines; and set previous $word
        else if test -z "$verb"
            if contains -- $word $verbs
                set verb $word
            else
                set verb train
                set taken 1
            end
        else
            set taken 1
        end
    end
    set config (string replace -r '^~' $HOME -- $config)
    if test -n "$previous"
        set -l value (string replace -rf -- "^A $previous " '' $__leyden_lines)
        if contains -- $value dir file
            __fish_complete_path $cur
        else if string match -q '*|*' $value
            string split '|' $value
        end
        return
    end
    if string match -q -- '-*' $cur
        test -n "$verb"; or set verb train
        __leyden_entries "F $verb "
        __leyden_entries 'F \* '
        return
    end
    if string match -q '*=*' -- $cur
        set -l parts (string split -m1 = -- $cur)
        set -l name (string replace -r '^[+~]+' '' -- $parts[1])
        set -l mark "$parts[1]="(string replace -r '[^\[,]*$' '' -- $parts[2])
        set -l quoted (string escape --style=regex -- $name)
        set -l found (__leyden_entries "C $quoted ")
        contains -- "K $name bool" $__leyden_lines; and set -a found true false
        if test -n "$config" -a -d "$config/$name"
            set -l own $config/$name/*.yaml
            set -a found (string replace -r '.*/(.*)\.yaml$' '$1' -- $own)
        end
        if test (count $found) -gt 0
            printf "$mark%s\n" $found
        else
            printf "$parts[1]=%s\n" (__fish_complete_path $parts[2])
        end
        return
    end
    set -l mark (string match -r '^[+~]*' -- $cur)
    set cur (string replace -r '^[+~]+' '' -- $cur)
    if test -z "$verb"
        string join \n -- $verbs
        set verb train
    end
    contains -- "P $verb" $__leyden_lines; and __fish_complete_path $cur
    test $taken = 0; and __leyden_entries "S $verb "
    test $verb = help; and string join \n -- $verbs
    string replace -r '$' '=' -- (__leyden_entries "N $verb ")
    contains -- "O $verb" $__leyden_lines; or return
    printf "$mark%s=\n" (__leyden_entries 'G ')
    set -l keys (string replace -r ' bool$' '' -- (__leyden_entries 'K '))
    set -l quoted (string escape --style=regex -- $cur)
    # the next part of a key: trainer. before trainer.max_epochs=
    set -l next
    for part in (string replace -rf -- "^($quoted"'[^.]*)(\.?).*' '$1$2' $keys | string replace -r '([^.])$' '$1=')
        contains -- $part $next; or set -a next $part
    end
    test (count $next) -gt 0; and printf "$mark%s\n" $next
    if test -n "$config"
        set -l own $config/*/
        test (count $own) -gt 0; and printf "$mark%s=\n" (string replace -r '.*/(.*)/$' '$1' -- $own)
    end
end

complete -c leyden -e
complete -c leyden -f -k -a '(__leyden_candidates)'
